"""A kernel in whole engines beside stock: matrix/results/kernels-<gpu>-<release>.json.

Written by matrix/kernels_gpu.py: text and logprobs, no speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout

EQUAL = "equal"
DO = "`python matrix/kernels_gpu.py` on a GPU"


@dataclass(frozen=True)
class Ran:
    """One model in one mode.

    texts: requests whose text was stock's, of how many. worst: the largest difference of a logprob
    before a text parted from stock's. equal: whether it was held to be stock's but for rounding.
    """

    release: str
    gpu: str
    torch: str
    date: str
    commit: str
    model: str
    mode: str
    texts: tuple[int, int]
    worst: float
    equal: bool


def read(checkout: Checkout, kernel: str) -> tuple[Ran, ...]:
    """All runs of a kernel, newest release first; CompatError for a damaged file."""
    found = (ran for file in checkout.results.glob("kernels-*.json") for ran in _of(file, kernel))
    return tuple(
        sorted(
            found,
            key=lambda ran: (tuple(int(x) for x in ran.release.split(".")), ran.model, ran.mode),
            reverse=True,
        )
    )


def _of(file: Path, kernel: str) -> Iterator[Ran]:
    body = files.load(file)
    for row in body["rows"]:
        if kernel not in row["kernels"].values() or "same_text" not in row:
            continue
        yield Ran(
            release=body["release"],
            gpu=body["gpu"],
            torch=body["torch"],
            date=body["date"],
            commit=body["commit"],
            model=row["model"],
            mode=row["mode"],
            texts=(row["same_text"], row["requests"]),
            worst=row["worst_logprob"],
            equal=row["status"] == EQUAL,
        )
