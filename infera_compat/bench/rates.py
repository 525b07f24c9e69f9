"""The two rates of the GPU that floors are counted by, measured in the run that uses them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from infera_compat.bench.floors import Rates

COPIED = 4 << 30
"""Bytes that are copied from one place of the GPU's memory to another."""
SIDE = 8192
"""Rows and columns of the matrices."""
TIMES, REPEATED = 9, 4


def measure() -> Rates:
    """A copy of several GB, and a large product of random bfloat16 matrices; the medians."""
    import torch

    with torch.inference_mode():
        copied, multiplied = _copy_us(torch), _matmul_us(torch)
        torch.cuda.empty_cache()
    return Rates(copy=2 * COPIED / (copied * 1e-6), matmul=2 * SIDE**3 / (multiplied * 1e-6))


def _copy_us(torch: Any) -> float:
    source = torch.randint(0, 255, (COPIED,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _median(lambda: target.copy_(source))


def _matmul_us(torch: Any) -> float:
    left, right = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    product = torch.empty_like(left)
    return _median(lambda: torch.mm(left, right, out=product))


def _median(work: Callable[[], Any]) -> float:
    """Microseconds of one call."""
    from infera_compat.kernels import replays

    def several() -> None:
        for _ in range(REPEATED):
            work()

    several()
    return statistics.median(replays.events_us(several) for _ in range(TIMES)) / REPEATED
