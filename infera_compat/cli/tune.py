"""`infera-compat tune experts`: the fastest tiles of infera_experts on the GPU that is here."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from infera_compat.errors import CompatError
from infera_compat.matrix import files

if TYPE_CHECKING:
    from infera_compat.kernels.experts.contract import ExpertsSpec
    from infera_compat.kernels.experts.plans import Plan

Sizes = tuple[int, int, int, int]
LAYERS: Sequence[Sizes] = (
    (128, 8, 2048, 768),
    (64, 6, 2048, 1408),
    (8, 2, 4096, 14336),
    (256, 8, 7168, 256),
    (128, 8, 4096, 192),
)
"""Experts, top_k, hidden, intermediate: of Qwen3 30B A3B, DeepSeek V2 Lite, Mixtral 8x7B, and of
shards of DeepSeek V3 and Qwen3 235B A22B."""


def experts(
    layers: Sequence[str], buckets: Sequence[int], folder: Path | None, console: Console
) -> int:
    """Tune layers, write their plans into the GPU's file, and return the exit status.

    Args:
        layers: each as E,k,K,N; LAYERS where there is none.
        buckets: tokens; all where there is none. Other buckets of a layer keep what they had.
        folder: of the files; None: beside the kernel's modules.
        console: where a person reads.

    Raises CompatError without a GPU, for a layer or a bucket that is none, and where the file can't
    be written.
    """
    machine = here()
    import torch
    import triton

    from infera_compat.kernels.experts import configs, timing, tuning
    from infera_compat.kernels.experts.plans import BUCKETS

    chosen = sorted(set(buckets)) or list(BUCKETS)
    unknown = [str(bucket) for bucket in chosen if bucket not in BUCKETS]
    if unknown:
        raise CompatError(
            f"there is no bucket {', '.join(unknown)}",
            found=", ".join(unknown),
            expected=f"some of {', '.join(map(str, BUCKETS))}",
            do="Mend --bucket.",
        )
    specs = specs_of(layers, machine)
    file = configs.path(machine.name, folder or configs.FOLDER)
    known = configs.read(file, machine.name) if file.is_file() else {}
    check_writable(file)
    with progress(console) as bar:
        compile_all(bar, timing.compile_one, candidates(specs, chosen))
        task = bar.add_task("timing", total=len(specs) * len(chosen))
        for spec in specs:
            layer = timing.Layer(spec, torch.device(machine.device))
            found: dict[int, tuple[Plan, float]] = {}
            for bucket in chosen:
                calls = layer.calls(bucket)
                found[bucket] = tuning.search(spec, bucket, timing.timer(calls, bucket))
                bar.advance(task)
            plans = known.setdefault(configs.layer(spec), {})
            plans.update({bucket: plan for bucket, (plan, _) in found.items()})
            # After each layer: what was found is not lost when the machine is.
            how = measured(torch.__version__, triton.__version__)
            with writing(file):
                configs.write(file, machine.name, how, known)
            console.print(_table(spec, found))
            del layer
            torch.cuda.empty_cache()
    console.print(f"Written: {file}", soft_wrap=True)
    return 0


def specs_of(layers: Sequence[str], machine: Machine) -> list[ExpertsSpec]:
    """The layers' specs on a machine, those of LAYERS where there is none; raises as `sizes`."""
    import torch

    from infera_compat.kernels.experts.contract import ExpertsSpec

    return [
        ExpertsSpec(
            *(each[0], each[0], each[2], each[3], each[1], torch.bfloat16),
            device=machine.device,
            capability=machine.capability,
        )
        for each in ([sizes(text) for text in layers] or LAYERS)
    ]


def candidates(
    specs: Sequence[ExpertsSpec], buckets: Sequence[int]
) -> list[tuple[ExpertsSpec, int, Plan]]:
    """What is compiled before the search, as arguments of timing.compile_one."""
    from infera_compat.kernels.experts import tuning

    return [(spec, *each) for spec in specs for each in tuning.everything(spec, buckets)]


def compile_all(
    bar: Progress, function: Callable[..., bool], todo: Sequence[tuple[Any, ...]]
) -> int:
    """Compile in a process a processor, and show it; returns for how many there is no room."""
    from infera_compat.kernels import replays

    different = list(dict.fromkeys(todo))
    task = bar.add_task("compiling", total=len(different))
    return replays.in_processes(function, different, os.cpu_count() or 1, lambda: bar.advance(task))


def sizes(text: str) -> Sizes:
    """E,k,K,N of a layer; CompatError for another text."""
    try:
        experts_, top_k, hidden, intermediate = numbers(text)
        if top_k > experts_:
            raise ValueError(f"{top_k} of {experts_} experts")
    except ValueError as error:
        raise CompatError(
            f"{text} is no layer",
            found=str(error),
            expected="experts,top_k,hidden,intermediate: 128,8,2048,768 say",
            do="Mend --layer.",
        ) from error
    return experts_, top_k, hidden, intermediate


def numbers(text: str) -> list[int]:
    """The whole numbers above zero in a text, between commas; ValueError for another text."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError(f"{min(found)}, which is not above zero")
    return found


def check_writable(file: Path) -> None:
    """Raise CompatError, before anything is timed, where a file's folder takes none."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass


def writing(file: Path) -> AbstractContextManager[None]:
    """Raise CompatError where the file can't be written in here."""
    return files.writing("what is tuned", file, "--folder")


@dataclass(frozen=True)
class Machine:
    """What is tuned for. name: the GPU's. capability: None where it is AMD's. device: torch's."""

    name: str
    capability: tuple[int, int] | None
    device: str = "cuda"


def here() -> Machine:
    """The GPU that is here; CompatError without one, or without torch and Triton."""
    try:
        import torch
        import triton  # noqa: F401 (to say in a word that it is missing)
    except ModuleNotFoundError as error:
        raise _nothing_to_tune(str(error)) from error
    if not torch.cuda.is_available():
        raise _nothing_to_tune("no GPU")
    capability = None if torch.version.hip else torch.cuda.get_device_capability()
    return Machine(torch.cuda.get_device_name(), capability)


def _nothing_to_tune(found: str) -> CompatError:
    return CompatError(
        "there is nothing to tune here",
        found=found,
        expected="a GPU, torch and Triton",
        do="Tune in vLLM's environment, on the GPU that is to serve.",
    )


def measured(torch_version: str, triton_version: str) -> dict[str, str]:
    """What a file says of how it was measured."""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    return {"torch": torch_version, "triton": triton_version, "date": today}


def progress(console: Console) -> Progress:
    """A bar for what is compiled, and for what is timed."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _table(spec: ExpertsSpec, found: dict[int, tuple[Plan, float]]) -> Table:
    from infera_compat.kernels.experts.plans import Few, Sorted

    shape = f"{spec.experts} experts, top {spec.top_k}, {spec.hidden} by {spec.intermediate}"
    table = Table(title=shape, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tokens", "µs"):
        table.add_column(name, justify="right")
    for name in ("rows", "gate_up", "down"):
        table.add_column(name)
    for bucket, (plan, time) in found.items():
        how = str(plan.rows) if isinstance(plan, Sorted) else "few" + ", merged" * plan.merge
        how += f", {plan.lines} lines" if isinstance(plan, Few) and plan.lines else ""
        tiles = (
            f"{it.columns}x{it.depth} {it.warps}w {it.stages}s"
            + (f" group {it.group}" if it.group != GROUP else "")
            + (f" {it.per_sm} an SM" if it.per_sm else "")
            + (f" across {it.across}" if it.across else "")
            for it in (plan.gate_up, plan.down)
        )
        table.add_row(str(bucket), f"{time:.1f}", how, *tiles)
    return table


GROUP = 8
"""A tile's group, where nothing else is said."""
