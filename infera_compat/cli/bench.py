"""`infera-compat bench`: a kernel beside stock vLLM, cell for cell, and what came of it."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infera_compat.bench import cells, engines, goals, plot, rates, record, tables
from infera_compat.bench import run as runs
from infera_compat.bench.record import ATTENTION, ENGINE, EXPERTS, Record
from infera_compat.bench.run import Done, Subject
from infera_compat.errors import CompatError
from infera_compat.kernels import sources
from infera_compat.kernels.kernel import ATTENTION as OP_ATTENTION
from infera_compat.kernels.kernel import EXPERTS as OP_EXPERTS
from infera_compat.kernels.kernel import OPS
from infera_compat.kernels.records import SOURCES
from infera_compat.kernels.table import Table as Preferences
from infera_compat.release import installed
from infera_compat.settings import AUTO, DISABLE, Settings

KERNELS: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("infera_decode", "infera_attention"),
    EXPERTS: ("infera_experts",),
}
"""By kind: what is measured where no kernel is named."""

STOCK: Mapping[str, str] = {
    ATTENTION: "infera_shims.bench.attention",
    EXPERTS: "infera_shims.bench.experts",
}
"""By kind: the module that has stock vLLM's side. By name, since it imports vLLM."""

STOCK_CODE: Mapping[str, str] = {OP_EXPERTS: runs.STOCK_EXPERTS, OP_ATTENTION: "vLLM's own choice"}
"""By a kernel's op: what it is over where no backend is told."""
GRAPHS = "graphs"
"""vLLM's own default: torch.compile and CUDA graphs."""
NO_GPU = "bench times kernels on a GPU, and torch finds none"


@dataclass(frozen=True)
class Asked:
    """What a bench is asked for.

    kernels: names, or module:attribute; none: KERNELS. baselines: stock backends; none: all.
    only: a part of a cell's name. json, plot: files to write. table: whether to write preference
    tables. table_file: the table that says what is chosen; None: each kernel's own.
    """

    kernels: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    only: str | None = None
    quick: bool = False
    json: Path | None = None
    plot: Path | None = None
    resume: bool = False
    table: bool = False
    table_file: Path | None = None
    commit: str | None = None


def bench(kind: str, asked: Asked, rehearse: bool, console: Console) -> int:
    """Measure, write the record, print the table; 0 where all cells came out, else 1.

    rehearse: run a few tiny cells on the CPU, and time nothing.
    """
    _prepare(rehearse)
    torch = _torch()
    if not rehearse and not torch.cuda.is_available():
        raise CompatError(
            NO_GPU,
            found="no GPU that torch can use",
            expected="one, in vLLM's environment",
            do="Run it there; --rehearse runs tiny cells on this CPU and times nothing.",
        )
    subjects = _subjects(kind, asked, rehearse)
    source = importlib.import_module(STOCK[kind])
    configured = importlib.import_module("infera_shims.bench.configured")
    limits = configured.REHEARSED if rehearse else configured.SERVER
    with tempfile.TemporaryDirectory(prefix="infera-bench-") as folder:
        settings = Settings.read(_folders_alone(), ())
        stock = source.Bench(settings, Path(folder), limits)
        if rehearse:
            return _rehearse(subjects, stock, console)
        found = rates.measure()
        console.print(
            f"{torch.cuda.get_device_name()}: copy {found.copy / 1e12:.2f} TB/s, "
            f"matmul {found.matmul / 1e12:.0f} TFLOP/s, measured now"
        )
        kept = _record(kind, asked, subjects, record.told_rates(found))
        failed = _measure(subjects, stock, kept, found, console)
    show(kept.body, console)
    if kept.file is not None:
        console.print(Text(f"Record: {kept.file}", style="dim"), soft_wrap=True)
    if asked.plot is not None:
        plot.draw([kept.body], asked.plot)
        console.print(Text(f"Plot: {asked.plot}", style="dim"), soft_wrap=True)
    if asked.table:
        write_tables(kept.body, (), None, console)
    return 1 if failed or not kept.cells else 0


@dataclass(frozen=True)
class AskedEngines:
    """What a bench of engines is asked for.

    models: names of engines.MODELS; none: the first two. layers: of a random model; None: its own.
    folder: where weights are written, and found again. smollm2: of the real weights.
    """

    models: tuple[str, ...]
    kernels: tuple[str, ...]
    baselines: tuple[str, ...]
    only: str | None
    layers: int | None
    folder: Path
    smollm2: Path | None
    rounds: int
    json: Path | None
    resume: bool
    table_file: Path | None
    commit: str | None


def bench_engines(asked: AskedEngines, rehearse: bool, console: Console) -> int:
    """Whole engines, stock and with a kernel, in turns; 0 where all loads came out, else 1."""
    torch = _torch()
    if installed() is None or not (rehearse or torch.cuda.is_available()):
        raise CompatError(
            NO_GPU,
            found="no GPU that torch can use" if installed() else "no package vllm",
            expected="one, in vLLM's environment",
            do="Run it there; --rehearse runs a tiny model on this CPU and writes nothing.",
        )
    known = engines.TINY if rehearse else engines.MODELS
    jobs = list(_jobs(asked, known))
    if not any(model.loads for model, _, _ in jobs):
        pairs = {f"{kernel} over {over}" for x in known.values() for kernel, over in x.pairs}
        raise CompatError(
            "there is nothing to measure",
            found=f"no load of {_options(asked)}",
            expected=f"a part of a load's name, and one of {', '.join(sorted(pairs))}",
            do="Leave an option out.",
        )
    named = importlib.import_module("infera_compat.kernels.conformance.record").named
    found = {kernel: named(kernel).kernel for _, kernel, _ in jobs}
    kept = Record({"cells": [], "refused": []}, None)
    if not rehearse:
        told = told_of_here(asked.commit, list(found.values()))
        where = asked.json or default_file(ENGINE, told)
        kept = Record.begin(ENGINE, told, {"date": told["date"]}, where, asked.resume)
    count = 0
    for model, kernel, backend in jobs:
        over = backend or STOCK_CODE[found[kernel].op]
        done = [x["name"] for x in kept.cells if (x["kernel"], x["baseline"]) == (kernel, over)]
        if all(engines.name(model, load) in done for load in model.loads):
            continue  # nothing is left of it, or nothing was asked for
        console.print(f"{model.name}: {kernel} over {over}")
        folder = engines.written(model, asked.folder, asked.smollm2)
        pair = engines.sides(kernel, backend, OPS[found[kernel].op], asked.table_file)
        with tempfile.TemporaryDirectory(prefix="infera-engines-") as own:
            both = {
                side.name: engines.Engine(
                    side, model, folder, rehearse, engines.own_folder(Path(own), side)
                )
                for side in pair
            }
            try:
                for cell in engines.pair(model, backend, both, done, asked.rounds):
                    count += 1
                    told_of = {"kernel": kernel, "baseline": over, "mode": GRAPHS, **cell}
                    if not rehearse:
                        kept.add(told_of)
                    console.print(Text(_engine_line(told_of, rehearse)), soft_wrap=True)
            finally:
                for engine in both.values():
                    engine.close()
    if rehearse:
        console.print(f"Rehearsed {count} loads on a CPU; nothing was timed.")
        return 0 if count else 1
    show(kept.body, console)
    console.print(Text(f"Record: {kept.file}", style="dim"), soft_wrap=True)
    return 0 if kept.cells else 1


def _jobs(
    asked: AskedEngines, known: Mapping[str, engines.Model]
) -> Iterator[tuple[engines.Model, str, str | None]]:
    """The models with their loads, each with a kernel and the backend that it is bound over."""
    for name in asked.models or tuple(known)[:2]:
        if name not in known:
            raise CompatError(
                f"there is no model {name}",
                found=name,
                expected=f"one of {', '.join(known)}",
                do="Name another --model.",
            )
        model = known[name]
        loads = tuple(
            load
            for load in model.loads
            if asked.only is None or asked.only in engines.name(model, load)
        )
        layers = asked.layers if asked.layers and model.kind else model.layers
        model = replace(model, loads=loads, layers=layers)
        for kernel, backend in model.pairs:
            kernels = asked.kernels or (kernel,)
            if kernel in kernels and (not asked.baselines or backend in asked.baselines):
                yield model, kernel, backend


def _engine_line(cell: Mapping[str, Any], rehearsed: bool) -> str:
    same = f"{cell['same_text']} of {cell['prompts']} texts the same"
    if rehearsed:
        return f"{cell['name']}: {same}, layers bound {cell['bound_layers'][-1]['layers']}"
    stock, ours = cell["stock"], cell["ours"]
    return (
        f"{cell['name']}: stock {stock['tok_s']:.0f} tok/s, ours {ours['tok_s']:.0f}, "
        f"{goals.of_engines(cell):.3f}×; {same}"
    )


def plot_records(files: Sequence[Path], where: Path, console: Console) -> int:
    """Draw records into one picture."""
    plot.draw([record.read(file) for file in files], where)
    console.print(Text(f"Plot: {where}", style="dim"), soft_wrap=True)
    return 0


def show_records(files: Sequence[Path], console: Console) -> int:
    """Print what records say, as a bench does at its end."""
    for file in files:
        show(record.read(file), console)
    return 0


def tables_of(file: Path, kernels: Sequence[str], folder: Path | None, console: Console) -> int:
    """Write the preference tables of a record's kernels."""
    return write_tables(record.read(file), kernels, folder, console)


def write_tables(
    body: Mapping[str, Any], kernels: Sequence[str], folder: Path | None, console: Console
) -> int:
    """The same of a record that was read. folder: where; None: beside each kernel's module."""
    if body["kind"] not in tables.OPS:
        raise CompatError(
            f"no table can be made of a bench of {body['kind']}",
            found="whole engines, which say nothing of single calls",
            expected=f"a record of bench {' or '.join(tables.OPS)}",
            do="Give another file.",
        )
    several = kernels or record.kernels(body["cells"])
    if not several:
        raise CompatError(
            "no table can be made",
            found="a record without a cell",
            expected="cells in graphs and with a cold cache",
            do="Run the bench again, with --resume.",
        )
    for kernel in several:
        where = tables.write(body, kernel, folder or tables.beside(kernel))
        console.print(Text(f"Table: {where}", style="dim"), soft_wrap=True)
    return 0


def show(body: Mapping[str, Any], console: Console) -> None:
    """Print a record: a row a group of cells, the cells left to stock, and the goals."""
    kind, measured = body["kind"], body["cells"]
    title = (
        f"{kind} on {body['gpu']}, stock vLLM {body['release']}, torch {body['torch']}, "
        f"triton {body['triton']}, at {body['commit']}, {body['date']}"
    )
    console.print(Text(title), soft_wrap=True)
    if kind == record.ENGINE:
        console.print(_engines(measured))
    else:
        console.print(_groups(kind, measured))
        left = [cell for cell in measured if not cell["chosen"]]
        for cell in left:
            console.print(
                Text(f"left to stock: {cell['name']} ({goals.measured(cell):.2f}×)", style="dim"),
                soft_wrap=True,
            )
    for one in body["refused"]:
        text = f"not measured: {one['kernel']}, {one['name']}: {one['why']}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    console.print(_goals(kind, measured))


def _groups(kind: str, measured: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in goals.COLUMNS[kind]:
        table.add_column(name, no_wrap=True)
    for name in ("cells", "left to stock", "× stock", "measured", "worst"):
        table.add_column(name, justify="right")
    table.add_column("at", overflow="fold")
    table.add_column("× floor, stock", justify="right")
    table.add_column("ours", justify="right")
    for group in goals.groups(kind, measured):
        table.add_row(
            *group.key,
            str(len(group.cells)),
            str(group.left),
            f"{group.geomean:.2f}",
            f"{group.measured:.2f}",
            f"{goals.measured(group.worst):.2f}",
            Text(group.where, style="dim"),
            f"{group.floor(record.STOCK):.2f}",
            f"{group.floor(record.OURS):.2f}",
        )
    return table


def _engines(measured: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "load", "batch", "over", "tok/s", "ours", "×", "ttft ms", "ours"):
        table.add_column(name)
    for name in ("tpot ms", "ours", "start s", "ours", "GiB", "ours", "same text"):
        table.add_column(name, justify="right")
    for cell in measured:
        stock, ours = cell["stock"], cell["ours"]
        pairs = [
            text
            for name, digits in (("ttft_ms", 1), ("tpot_ms", 2), ("start_s", 0), ("peak_gib", 1))
            for text in (f"{stock[name]:.{digits}f}", f"{ours[name]:.{digits}f}")
        ]
        table.add_row(
            cell["model"],
            cell["load"],
            str(cell["batch"]),
            cell["baseline"],
            f"{stock['tok_s']:.0f}",
            f"{ours['tok_s']:.0f}",
            f"{ours['tok_s'] / stock['tok_s']:.3f}",
            *pairs,
            f"{cell['same_text']}/{cell['prompts']}",
        )
    return table


def _goals(kind: str, measured: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("goal", "wanted", "found", "cells", ""):
        table.add_column(name, overflow="fold")
    for score in goals.scores(kind, measured):
        found = "not measured" if score.found is None else f"{score.found:.3f}×"
        said = ("reached", "green") if score.reached else ("not reached", "bold red")
        table.add_row(
            score.what,
            f"{score.wanted:.2f}×",
            found,
            str(score.cells),
            Text(said[0], style=said[1]),
        )
    return table


def _prepare(rehearse: bool) -> None:
    """Before vLLM is imported: the plugin binds nothing here, so that stock is stock."""
    os.environ[DISABLE] = "1"
    _torch()
    if installed() is None:
        raise CompatError(
            "bench measures beside stock vLLM, and this Python has none",
            found="no package vllm",
            expected="a vLLM from 0.22",
            do="Run it in vLLM's environment.",
        )
    if rehearse:
        importlib.import_module("infera_shims.bench.rehearsal").prepare()


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        raise CompatError(
            "bench runs kernels, and this Python has no torch",
            found=str(error),
            expected="torch beside infera-compat, as it is in vLLM's environment",
            do="Run it there.",
        ) from error


def _folders_alone() -> dict[str, str]:
    """The environment without what says which kernel is to be bound."""
    return {name: os.environ[name] for name in ("INFERA_CACHE_DIR", "HOME", "XDG_CACHE_HOME")
            if name in os.environ}  # fmt: skip


def _subjects(kind: str, asked: Asked, rehearse: bool) -> list[Subject]:
    named = importlib.import_module("infera_compat.kernels.conformance.record").named
    found = []
    for name in asked.kernels or KERNELS[kind]:
        known = named(name)
        kernel = known.kernel
        if kernel.op != tables.OPS[kind]:
            raise CompatError(
                f"bench {kind} can't measure {name}",
                found=f"a kernel for {kernel.op}",
                expected=f"one for {tables.OPS[kind]}",
                do="Name another --kernel.",
            )
        if kind == ATTENTION:
            several = cells.rehearsed_attention if rehearse else cells.attention
            every: Sequence[Any] = several(kernel.max_query_len)
        else:
            every = cells.rehearsed_experts() if rehearse else cells.experts()
        left = runs.picked(every, asked.baselines, asked.only, asked.quick)
        table = Preferences.everywhere() if rehearse else _preferences(kernel, asked)
        found.append(Subject(kernel, known.distribution, table, left))
    if not any(subject.cells for subject in found):
        raise CompatError(
            "there is nothing to measure",
            found=f"no cell of {_options(asked)}",
            expected="a part of a cell's name, as the table at a bench's end has it",
            do="Leave an option out.",
        )
    return found


def _options(asked: Asked | AskedEngines) -> str:
    """What was asked for, as it was written."""
    given = {"--kernel": asked.kernels, "--baseline": asked.baselines}
    given["--only"] = (asked.only,) if asked.only is not None else ()
    words = [f"{option} {value}" for option, values in given.items() for value in values]
    return ", ".join(words) or "those that there are"


def _preferences(kernel: Any, asked: Asked) -> Preferences:
    torch = _torch()
    module = importlib.import_module(type(kernel).__module__)
    return Preferences.chosen(
        asked.table_file or AUTO,
        kernel=kernel.name,
        op=kernel.op,
        folder=Path(str(module.__file__)).parent,
        gpu=torch.cuda.get_device_name(),
    )


def _record(kind: str, asked: Asked, subjects: Sequence[Subject], run: Mapping[str, Any]) -> Record:
    told = told_of_here(asked.commit, [subject.kernel for subject in subjects])
    where = asked.json or default_file(kind, told)
    run = {**run, "date": told["date"], "l2_bytes": _l2()}
    return Record.begin(kind, told, run, where, asked.resume)


def told_of_here(commit: str | None, kernels: Sequence[Any]) -> dict[str, Any]:
    """What a record says of this machine, this vLLM, and these kernels."""
    torch, release = _torch(), installed()
    checked_out = importlib.import_module("infera_compat.kernels.conformance.record").here()
    known = commit or (checked_out.commit() if checked_out else None)
    return {
        "gpu": torch.cuda.get_device_name(),
        "release": release.text if release else "",
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "commit": known or "unknown",
        "date": datetime.now(timezone.utc).date().isoformat(),
        SOURCES: {kernel.name: sources.digest(kernel) for kernel in kernels},
    }


def default_file(kind: str, told: Mapping[str, Any]) -> Path:
    """A record's place: in the checkout's matrix/results, or in this folder."""
    checked_out = importlib.import_module("infera_compat.kernels.conformance.record").here()
    folder: Path = checked_out.results if checked_out else Path()
    return folder / record.file_name(kind, told["gpu"], told["release"])


def _l2() -> int:
    torch = _torch()
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def _measure(
    subjects: Sequence[Subject], stock: Any, kept: Record, found: Any, console: Console
) -> int:
    """Run all cells; returns how many failed."""
    total = sum(len(subject.cells) for subject in subjects)
    failed = 0
    with _progress(console, total) as (told, advance):
        for done in runs.run(subjects, stock, kept, found, told):
            failed += done.failed
            advance(_line(done))
    return failed


def _rehearse(subjects: Sequence[Subject], stock: Any, console: Console) -> int:
    """Run tiny cells without a clock; nothing is written."""
    nowhere = Record({"cells": [], "refused": [], "runs": [{}]}, None)
    count = failed = 0
    for done in runs.run(subjects, stock, nowhere, None, lambda *_: None):
        count += done.found is not None
        failed += done.found is None
        console.print(Text(_line(done)), soft_wrap=True)
    said = f"Rehearsed {count} cells on a CPU, {failed} did not come out; nothing was timed."
    console.print(Text(said, style="bold red" if failed else "bold"))
    return 1 if failed or not count else 0


def _line(done: Done) -> str:
    """A cell in a line."""
    head = f"{done.subject.kernel.name}  {done.cell.name}"
    if done.found is None:
        return f"{head}: {'FAILED' if done.failed else 'not taken'}: {done.why}"
    if record.STOCK not in done.found:
        return f"{head}: the same, to {done.found['worst_difference']:.2g}"
    stock, ours = done.found[record.STOCK], done.found[record.OURS]
    return (
        f"{head}: stock {stock:.1f} µs, ours {ours:.1f}, floor {done.found[record.FLOOR]:.1f}, "
        f"{stock / ours:.3f}×{'' if done.found['chosen'] else ', left to stock'}"
    )


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    """A bar on a terminal, and a line for each cell above it; lines alone in a file."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=total)

    def told(subject: Subject, cell: Any) -> None:
        bar.update(task, description=f"{subject.kernel.name}: {cell.name}")

    def advance(line: str) -> None:
        console.print(Text(line), soft_wrap=True)
        bar.advance(task)

    with bar:
        yield told, advance
