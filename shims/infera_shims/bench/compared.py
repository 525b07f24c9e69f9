"""Whether two sides that are timed against each other do the same work: their outputs are held
against each other first, and what differs is not timed."""

from __future__ import annotations

import torch

BOUND = 2e-2
"""The most by which two outputs may differ, whose values are of the order of one."""


class Different(Exception):
    """The two sides wrote different outputs, or the kernel left the step to stock."""


def difference(stock: torch.Tensor, ours: torch.Tensor, what: str) -> float:
    """The largest absolute difference; Different where it is beyond BOUND, or no number."""
    worst = float((stock.float() - ours.float()).abs().max())
    if not worst <= BOUND:  # NaN: something was not written, or is none
        raise Different(f"{what}: the outputs differ by {worst:.3g}, allowed are {BOUND}")
    return worst


def poison(*outputs: torch.Tensor) -> None:
    """Make each element of some outputs a NaN, so that one that is not written is seen."""
    for output in outputs:
        output.fill_(float("nan"))
