"""Fill Triton's cache with what `infera-compat tune` compiles for an H200, where there is none.

    TRITON_CACHE_DIR=folder python matrix/precompile.py attention        # or experts

Triton compiles without a GPU; only its driver asks for one. Here a driver that loads and launches
nothing stands in its place, and the candidates are launched on tensors of the CPU. It wants the
torch and Triton of the machine that is to tune, and the same Python. That the cache is found again
there has not been tried on a GPU yet: Triton's key of it is printed, to be compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.cache import triton_key

from infera_compat.cli import tune, tune_attention
from infera_compat.kernels.attention import timing as of_attention
from infera_compat.kernels.attention.eligible import ASSUMED_PROCESSORS
from infera_compat.kernels.experts import timing as of_experts
from infera_compat.kernels.experts.plans import BUCKETS
from infera_compat.kernels.limits import HOPPER, SHARED

H200 = tune.Machine("NVIDIA H200", HOPPER, device="cpu")
PROPERTIES = {"max_shared_mem": SHARED[HOPPER], "multiprocessor_count": ASSUMED_PROCESSORS}


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
        self.get_device_capability = lambda *_: HOPPER
        self.get_current_stream = self.get_current_device = lambda *_: 0
        self.set_current_device = lambda *_: None


def compiled(compile_one: Callable[..., bool], *candidate: Any) -> bool:
    """Compile a candidate; False where the GPU would have no room for it."""
    driver.set_active(Absent())
    return compile_one(*candidate)


def attention() -> list[tuple[Any, ...]]:
    """The candidates of `tune attention`, for its usual layers, each with what compiles it."""
    specs = tune_attention.specs_of((), H200)
    return [(of_attention.compile_one, *each) for each in tune_attention.candidates(specs)]


def experts() -> list[tuple[Any, ...]]:
    """The same of `tune experts`, for all buckets."""
    specs = tune.specs_of((), H200)
    return [(of_experts.compile_one, *each) for each in tune.candidates(specs, BUCKETS)]


OPS = {"attention": attention, "experts": experts}


def main() -> None:
    """Compile an op's candidates in as many processes as there are processors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", choices=tuple(OPS))
    todo = OPS[parser.parse_args().op]()
    print(f"Triton's key: {triton_key()[:64]}")
    with tune.progress(Console()) as bar:
        failed = tune.compile_all(bar, compiled, todo)
    print(f"{len(set(todo))} candidates, {failed} too large for the GPU")


if __name__ == "__main__":
    main()
