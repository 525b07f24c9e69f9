"""Fill Triton's cache with what `infera-compat tune` compiles for an H200, where there is none.

    TRITON_CACHE_DIR=folder python matrix/precompile.py attention        # or experts

Triton compiles without a GPU; only its driver asks for one. Here a driver that loads and launches
nothing stands in its place, and the candidates are launched on tensors of the CPU. It wants the
torch and Triton of the machine that is to tune, and the same Python. That the cache is found again
there has not been tried on a GPU yet: Triton's key of it is printed, to be compared.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from rich.console import Console
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.cache import triton_key

from infera_compat.cli import tune, tune_attention
from infera_compat.kernels import replays
from infera_compat.kernels.attention import arguments
from infera_compat.kernels.attention import timing as of_attention
from infera_compat.kernels.attention import tuning as attention_tuning
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.experts import timing as of_experts
from infera_compat.kernels.experts import tuning as experts_tuning
from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.experts.plans import BUCKETS

CAPABILITY = (9, 0)
PROPERTIES = {"max_shared_mem": 227 * 1024, "multiprocessor_count": 132}
DEVICE = "cpu"


class Nothing:
    """Stands for what loads a compiled kernel, and for what launches it."""

    def __init__(self, *_: Any) -> None:
        """Take what a launcher is made with."""

    def __call__(self, *_: Any) -> None:
        """Launch nothing."""

    def load_binary(self, *_: Any) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills, threads at most: none of them is used."""
        return 1, 1, 0, 0, 1024

    def get_device_properties(self, *_: Any) -> dict[str, int]:
        """What a kernel's shared memory is held against."""
        return PROPERTIES


class Absent(CudaDriver):  # type: ignore[misc]
    """The driver of a GPU that is not here."""

    def __init__(self) -> None:
        """Ask for nothing."""
        self.utils, self.launcher_cls = Nothing(), Nothing
        self.get_device_capability = lambda *_: CAPABILITY
        self.get_current_stream = self.get_current_device = lambda *_: 0
        self.set_current_device = lambda *_: None


def compiled(op: str, *candidate: Any) -> bool:
    """Compile a candidate; False where the GPU would have no room for it."""
    driver.set_active(Absent())
    module: Any = of_attention if op == "attention" else of_experts
    return bool(module.compile_one(*candidate))


def attention() -> Iterator[tuple[Any, ...]]:
    """The candidates of `tune attention`, for its usual layers."""
    for sizes in tune_attention.LAYERS:
        spec = AttentionSpec(
            *(*sizes, torch.bfloat16, torch.bfloat16),
            block_size=tune_attention.BLOCK_SIZE,
            device=DEVICE,
            capability=CAPABILITY,
        )
        decodings = list(attention_tuning.decodings())
        yield from product(["attention"], [spec], decodings, arguments.LOOKED_AT)
        for prefilling in attention_tuning.PREFILL_TILES:
            yield "attention", spec, prefilling, arguments.LOOKED_AT[1]


def experts() -> Iterator[tuple[Any, ...]]:
    """The candidates of `tune experts`, for its usual layers and all buckets."""
    for count, top_k, hidden, intermediate in tune.LAYERS:
        spec = ExpertsSpec(
            *(count, count, hidden, intermediate, top_k, torch.bfloat16),
            device=DEVICE,
            capability=CAPABILITY,
        )
        for candidate in experts_tuning.everything(spec, BUCKETS):
            yield "experts", spec, *candidate


OPS = {"attention": attention, "experts": experts}


def main() -> None:
    """Compile an op's candidates in as many processes as there are processors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", choices=tuple(OPS))
    todo = list(dict.fromkeys(OPS[parser.parse_args().op]()))
    print(f"Triton's key: {triton_key()[:64]}")
    with tune.progress(Console()) as bar:
        task = bar.add_task("compiling", total=len(todo))
        failed = replays.in_processes(
            compiled, todo, os.cpu_count() or 1, lambda: bar.advance(task)
        )
    print(f"{len(todo)} candidates, {failed} too large for the GPU")


if __name__ == "__main__":
    main()
