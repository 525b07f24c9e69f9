"""The commands: report, demo, matrix record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infera_compat import __version__
from infera_compat.cli import demo as demo_command
from infera_compat.cli import report as report_command
from infera_compat.errors import CompatError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
matrix = typer.Typer(no_args_is_help=True, help="What each vLLM release offers.")
app.add_typer(matrix, name="matrix")
bench = typer.Typer(
    no_args_is_help=True,
    help="A kernel's times beside stock vLLM's, in the same run on a GPU.",
)
app.add_typer(bench, name="bench")
tune = typer.Typer(no_args_is_help=True, help="Find a kernel's fastest settings on this GPU.")
app.add_typer(tune, name="tune")

PIPE_WIDTH = 160
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", help="A kernel, or module:attribute; may be given again."),
]
Only = Annotated[str | None, typer.Option(help="Cells whose name contains this.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="The record. Default: its place in matrix/results, or here."),
]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw the record into this file.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the record that is there.")]
Quick = Annotated[bool, typer.Option("--quick", help="Few of the cells.")]
WriteTable = Annotated[
    bool, typer.Option("--table", help="Write each kernel's preference table beside its module.")
]
TableFile = Annotated[
    Path | None,
    typer.Option(help="The table that says where a kernel is chosen. Default: its own."),
]
Commit = Annotated[
    str | None, typer.Option(help="Written into the record. Default: what git says.")
]
Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="A few tiny cells on the CPU; nothing is timed.")
]
Files = Annotated[list[Path], typer.Argument(help="Records of a bench.")]


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Other attention and MoE kernels for stock vLLM, without a fork."""
    if version:
        print(f"infera-compat {__version__}")
        raise typer.Exit


@app.command()
def report(
    as_json: AsJson = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A file that INFERA_REPORT wrote: layers and calls per process."
        ),
    ] = None,
) -> None:
    """Which vLLM this is, by which shim and seams it is bound, and whether its contracts hold.

    Starts no engine. Layers are known only where a model was built: read --from such a run's file.
    """
    with _told_plainly(as_json):
        if source is None:
            status = report_command.here(os.environ, as_json, _console())
        else:
            status = report_command.from_file(source, as_json, _console())
    raise typer.Exit(status)


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option(help="Where the demo's models are kept between runs.")
    ] = Path(".cache/demo"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write what was compared to this file.")
    ] = None,
) -> None:
    """Stock vLLM answers with the plugin off, passing through, and as platform: bit for bit."""
    with _told_plainly():
        status = demo_command.demo(folder, Console(), json_file)
    raise typer.Exit(status)


@app.command()
def verify(
    name: Annotated[str, typer.Argument(help="An installed kernel, or module:attribute.")],
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Default: a GPU where there is one.")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The record's file. Default, in a checkout: in matrix/results."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A check to run; may be given again. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
) -> None:
    """Whether a kernel keeps the contract: runs it on many calls, starts no engine.

    Status 0 where nothing failed; 1 where something did. What could not be run here says why.
    """
    from infera_compat.cli import verify as verify_command

    with _told_plainly(as_json):
        status = verify_command.verify(name, device, out, only or [], seed, as_json, _console())
    raise typer.Exit(status)


@app.command()
def plan(
    name: Annotated[str, typer.Argument(help="The kernel.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The page. Default: docs/plans/NAME.md."),
    ] = None,
    check_it: Annotated[
        bool,
        typer.Option("--check", help="Write nothing: status 1 where the page is stale or gapped."),
    ] = False,
    as_json: AsJson = False,
    checkout: Annotated[Path, typer.Option(help="The project's root.")] = Path(),
) -> None:
    """Write a kernel's integration plan from its spec and from what was measured of it.

    What was not measured stands there as not measured, with the command that would. --check asks
    the twelve questions of a review. NAME.toml beside the page holds what its author adds.
    """
    from infera_compat.cli import plan as plan_command

    with _told_plainly(as_json):
        status = plan_command.plan(name, output, check_it, as_json, checkout, _console())
    raise typer.Exit(status)


@tune.command()
def experts(
    layer: Annotated[
        list[str] | None,
        typer.Option(help="experts,top_k,hidden,intermediate; may be given again. Default: five."),
    ] = None,
    bucket: Annotated[
        list[int] | None, typer.Option(help="Tokens, a power of two; may be given again.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Of the GPU's file. Default: beside the kernel.")
    ] = None,
) -> None:
    """Time infera_experts' candidates on this GPU, and keep the fastest for each number of tokens.

    Starts no engine. They go into the GPU's file, which the kernel reads from the next start on.
    """
    from infera_compat.cli import tune as tune_command

    with _told_plainly():
        status = tune_command.experts(layer or [], bucket or [], folder, _console())
    raise typer.Exit(status)


@tune.command("attention")
def tune_attention(
    layer: Annotated[
        list[str] | None,
        typer.Option(help="heads,kv_heads,head_size; may be given again. Default: four."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Of the GPU's file. Default: beside the kernels.")
    ] = None,
) -> None:
    """Time how infera_decode and infera_attention may cut steps on this GPU, and keep the best.

    Starts no engine. It goes into the GPU's file, which the kernels read from the next start on.
    """
    from infera_compat.cli import tune_attention as tune_command

    with _told_plainly():
        status = tune_command.attention(layer or [], folder, _console())
    raise typer.Exit(status)


@bench.command("attention")
def bench_attention(
    kernel: Kernels = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="A stock backend, FLASH_ATTN say; may be given again. Default: all."),
    ] = None,
    only: Only = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    resume: Resume = False,
    table: WriteTable = False,
    table_file: TableFile = None,
    commit: Commit = None,
    rehearse: Rehearse = False,
) -> None:
    """Decoding, prefill and mixed batches, beside the backends of the installed vLLM.

    Outputs are held against stock's first. Status 1 where a cell's differ, or nothing was measured.
    """
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        asked = bench_command.Asked(
            kernels=tuple(kernel or ()),
            baselines=tuple(baseline or ()),
            only=only,
            quick=quick,
            json=json_file,
            plot=plot,
            resume=resume,
            table=table,
            table_file=table_file,
            commit=commit,
        )
        status = bench_command.bench("attention", asked, rehearse, _console())
    raise typer.Exit(status)


@bench.command("experts")
def bench_experts(
    kernel: Kernels = None,
    only: Only = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    resume: Resume = False,
    table: WriteTable = False,
    table_file: TableFile = None,
    commit: Commit = None,
    rehearse: Rehearse = False,
) -> None:
    """Experts of unquantised MoE layers, beside those that the installed vLLM picks.

    Outputs are held against stock's first. Status 1 where a cell's differ, or nothing was measured.
    """
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        asked = bench_command.Asked(
            kernels=tuple(kernel or ()),
            only=only,
            quick=quick,
            json=json_file,
            plot=plot,
            resume=resume,
            table=table,
            table_file=table_file,
            commit=commit,
        )
        status = bench_command.bench("experts", asked, rehearse, _console())
    raise typer.Exit(status)


@bench.command("engine")
def bench_engine(
    model: Annotated[
        list[str] | None,
        typer.Option(help="llama-3-8b, qwen3-30b-a3b (the default: both) or smollm2-135m."),
    ] = None,
    kernel: Kernels = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="The stock backend under the kernel. Default: all.")
    ] = None,
    only: Only = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of the models with random weights.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where the random weights are written, and found again.")
    ] = Path(".cache/bench"),
    smollm2: Annotated[
        Path | None, typer.Option(help="SmolLM2's folder (infera_shims.engines.smollm2).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each load.")] = 3,
    json_file: JsonFile = None,
    resume: Resume = False,
    table_file: TableFile = None,
    commit: Commit = None,
    rehearse: Rehearse = False,
) -> None:
    """Whole engines: stock and one with a kernel, on one GPU, which generate in turns.

    Two starts a pair, of a minute or two. Status 1 where no load came out.
    """
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        asked = bench_command.AskedEngines(
            models=tuple(model or ()),
            kernels=tuple(kernel or ()),
            baselines=tuple(baseline or ()),
            only=only,
            layers=layers,
            folder=folder,
            smollm2=smollm2,
            rounds=rounds,
            json=json_file,
            resume=resume,
            table_file=table_file,
            commit=commit,
        )
        status = bench_command.bench_engines(asked, rehearse, _console())
    raise typer.Exit(status)


@bench.command("show")
def bench_show(records: Files) -> None:
    """Print what records say: groups of cells, what is left to stock, the goals."""
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        status = bench_command.show_records(records, _console())
    raise typer.Exit(status)


@bench.command("plot")
def bench_plot(
    records: Files,
    plot: Annotated[Path, typer.Option("--plot", help="The picture, .png say.")],
) -> None:
    """Draw the rooflines of records; from the files alone, on any machine."""
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        status = bench_command.plot_records(records, plot, _console())
    raise typer.Exit(status)


@bench.command("table")
def bench_table(
    measured: Annotated[Path, typer.Argument(help="The record of a bench.")],
    kernel: Kernels = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where. Default: tables, beside each kernel's module.")
    ] = None,
) -> None:
    """Write the tables of where a record's kernels are faster than stock."""
    from infera_compat.cli import bench as bench_command

    with _told_plainly():
        status = bench_command.tables_of(measured, kernel or [], folder, _console())
    raise typer.Exit(status)


@matrix.command()
def check(
    release: Annotated[
        str | None, typer.Argument(help="The release whose wheel is fetched, 0.33.0 say.")
    ] = None,
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel of vLLM to look into instead.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="An unpacked wheel's vllm folder to look into instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold a release against what the plugin needs: its wheel's source alone, nothing is run.

    Status 0 where it is supported; 1 where something moved, or it is outside the supported range.
    """
    from infera_compat.cli import check as check_command

    with _told_plainly(as_json):
        status = check_command.check(release, wheel, root, as_json, _console())
    raise typer.Exit(status)


@matrix.command()
def record(
    release: Annotated[
        str | None, typer.Argument(help="The release to fetch. Default: the installed one.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="An unpacked wheel's vllm folder, instead of the installed.")
    ] = None,
    distribution: Annotated[str, typer.Option(help="The distribution that it is from.")] = "vllm",
    again: Annotated[
        bool, typer.Option("--again", help="Every recorded release, after a change of needs.")
    ] = False,
    checkout: Annotated[Path, typer.Option(help="The project's root.")] = Path(),
) -> None:
    """Write what a release offers to matrix/contracts, and its hashes into the wheel's data."""
    from infera_compat.cli import record as record_command

    with _told_plainly():
        if again:
            status = record_command.again(checkout, _console())
        else:
            status = record_command.record(release, root, distribution, checkout, _console())
    raise typer.Exit(status)


@matrix.command()
def run(
    release: Annotated[
        list[str] | None, typer.Option(help="A release to run; may be given again. Default: all.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Releases that run at once.")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is recorded.")] = False,
    as_json: AsJson = False,
    checkout: Annotated[Path, typer.Option(help="The project's root.")] = Path(),
) -> None:
    """Run each release on a CPU, each op by each seam, against stock; then write the tables.

    Goes on where an earlier run of the same source was stopped. Status 1 where a cell failed.
    """
    from infera_compat.cli import matrix as matrix_command

    with _told_plainly(as_json):
        status = matrix_command.run(checkout, release or [], jobs, fresh, as_json, _console())
    raise typer.Exit(status)


@matrix.command()
def support(
    measured: Annotated[
        list[Path] | None,
        typer.Argument(help="Files that matrix/seams_gpu.py or kv_views_gpu.py wrote on a GPU."),
    ] = None,
    checkout: Annotated[Path, typer.Option(help="The project's root.")] = Path(),
) -> None:
    """Write matrix/SUPPORT.md and the README's table from what is recorded."""
    from infera_compat.cli import matrix as matrix_command

    with _told_plainly():
        status = matrix_command.support(checkout, measured or [], _console())
    raise typer.Exit(status)


def _console() -> Console:
    """The terminal; a file or a pipe, which has no width of its own, gets room for the tables."""
    console = Console()
    has_width = console.is_terminal or "COLUMNS" in os.environ
    return console if has_width else Console(width=PIPE_WIDTH)


@contextmanager
def _told_plainly(as_json: bool = False) -> Iterator[None]:
    """A CompatError is a message for a person, or JSON for a program, no traceback; status 2."""
    try:
        yield
    except CompatError as error:
        if as_json:
            parts = {name: getattr(error, name) for name in ("what", "found", "expected", "do")}
            typer.echo(json.dumps({"error": parts}, indent=1))
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
