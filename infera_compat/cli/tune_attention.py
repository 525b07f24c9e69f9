"""`infera-compat tune attention`: how infera_decode and infera_attention cut steps, on this GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from infera_compat.cli import tune
from infera_compat.errors import CompatError

if TYPE_CHECKING:
    from infera_compat.kernels.attention.contract import AttentionSpec
    from infera_compat.kernels.attention.settings import Decoding, Prefilling

Sizes = tuple[int, int, int]
LAYERS: Sequence[Sizes] = ((32, 8, 128), (32, 4, 128), (64, 8, 128), (8, 1, 128))
"""Query heads, KV heads, channels of a head: of Llama 3 8B, Qwen3 30B A3B, Llama 3 70B, and of a
rank's share of the last under tensor parallelism of 8."""
BLOCK_SIZE = 16
"""Slots of a block: vLLM's usual one."""


def attention(layers: Sequence[str], folder: Path | None, console: Console) -> int:
    """Tune layers, write their settings into the GPU's file, and return the exit status.

    Args:
        layers: each as heads,kv_heads,head_size; LAYERS where there is none.
        folder: of the files; None: beside the kernels' modules.
        console: where a person reads.

    Raises CompatError without a GPU, for a layer that is none, and where the file can't be written.
    """
    machine = tune.here()
    import torch
    import triton

    from infera_compat.kernels import pieces
    from infera_compat.kernels.attention import settings, timing, tuning

    specs = specs_of(layers, machine)
    file = settings.path(machine.name, folder or settings.FOLDER)
    known = settings.read(file, machine.name) if file.is_file() else {}
    tune.check_writable(file)
    with tune.progress(console) as progress:
        tune.compile_all(progress, timing.compile_one, candidates(specs))
        task = progress.add_task("timing", total=len(specs) * (len(pieces.LOOKED_AT) + 1))
        for spec in specs:
            layer = timing.Layer(spec, torch.device(machine.device))
            decoded = {}
            for looked_at in pieces.LOOKED_AT:
                decoded[looked_at] = tuning.decoding(looked_at, layer.timer(looked_at))
                progress.advance(task)
            prefilled = tuning.prefilling(layer.timer(pieces.LOOKED_AT[1]))
            progress.advance(task)
            decoding = {looked_at: found for looked_at, (found, _) in decoded.items()}
            known[settings.layer(spec)] = settings.Found(decoding, prefilled[0])
            # After each layer: what was found is not lost when the machine is.
            how = tune.measured(torch.__version__, triton.__version__)
            with tune.writing(file):
                settings.write(file, machine.name, how, known)
            console.print(_table(spec, decoded, prefilled))
            del layer
            torch.cuda.empty_cache()
    console.print(f"Written: {file}", soft_wrap=True)
    return 0


def specs_of(layers: Sequence[str], machine: tune.Machine) -> list[AttentionSpec]:
    """The layers' specs on a machine, those of LAYERS where there is none; raises as `sizes`."""
    import torch

    from infera_compat.kernels.attention.contract import AttentionSpec

    return [
        AttentionSpec(
            *each,
            torch.bfloat16,
            torch.bfloat16,
            block_size=BLOCK_SIZE,
            device=machine.device,
            capability=machine.capability,
        )
        for each in ([sizes(text) for text in layers] or LAYERS)
    ]


def candidates(specs: Sequence[AttentionSpec]) -> list[tuple[Any, ...]]:
    """What is compiled before the search, as arguments of timing.compile_one."""
    from infera_compat.kernels import pieces
    from infera_compat.kernels.attention import tuning

    decodings = list(tuning.decodings())
    todo: list[tuple[Any, ...]] = []
    for spec in specs:
        todo += product([spec], decodings, pieces.LOOKED_AT)
        todo += [(spec, it, pieces.LOOKED_AT[1]) for it in tuning.PREFILL_TILES]
    return todo


def sizes(text: str) -> Sizes:
    """heads,kv_heads,head_size of a layer; CompatError for another text."""
    try:
        heads, kv_heads, head_size = tune.numbers(text)
        if heads % kv_heads:
            raise ValueError(f"{heads} heads over {kv_heads}")
    except ValueError as error:
        raise CompatError(
            f"{text} is no layer",
            found=str(error),
            expected="heads,kv_heads,head_size: 32,8,128 say",
            do="Mend --layer.",
        ) from error
    return heads, kv_heads, head_size


def _table(
    spec: AttentionSpec,
    decoded: Mapping[int, tuple[Decoding, float]],
    prefilled: tuple[Prefilling, float],
) -> Table:
    shape = f"{spec.heads} heads over {spec.kv_heads}, {spec.head_size} channels"
    table = Table(title=shape, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("steps")
    table.add_column("mean µs", justify="right")
    table.add_column("settings", overflow="fold")
    rows: dict[str, tuple[Decoding | Prefilling, float]] = {
        f"decoding, up to {at} requests": its for at, its in decoded.items()
    }
    rows["prefill"] = prefilled
    for name, (found, time) in rows.items():
        said = ", ".join(f"{key} {value}" for key, value in asdict(found).items())
        table.add_row(name, f"{time:.1f}", said)
    return table
