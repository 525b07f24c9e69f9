"""How to cut a layer's steps: the candidates, the steps that they are timed on, and the search.

Knows no GPU: who calls it hands over what times settings. Which ones are better is judged over
several steps, since a graph is captured for all lengths: the sum of the logarithms of their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from infera_compat.kernels.attention.settings import Decoding, Prefilling

AnySettings = TypeVar("AnySettings", Decoding, Prefilling)


@dataclass(frozen=True)
class Step:
    """A step of `requests` requests, each of `length` tokens, the last `new` of them queries."""

    requests: int
    length: int
    new: int = 1


Timer = Callable[[Any, Step], float]
"""Microseconds of a step by settings; infinity where the GPU has no room for them."""

DECODED: Mapping[int, Sequence[Step]] = {
    1: (Step(1, 640), Step(1, 2048), Step(1, 12288)),
    16: (Step(2, 2048), Step(4, 1536), Step(8, 3072), Step(16, 1280)),
    256: (Step(32, 2048), Step(64, 768), Step(256, 640)),
}
"""By one of pieces.LOOKED_AT: other steps than those of the bench, which is the judge."""
PREFILLED: Sequence[Step] = (Step(1, 12288, 3072), Step(4, 3072, 3072))

# Tiles, warps and stages are compiled anew, numbers of pieces are not.
DECODE_TILES: Sequence[Mapping[str, int]] = tuple(
    {"block_n": block_n, "warps": warps, "stages": stages}
    for block_n, warps, stages in (
        (64, 4, 4),
        (64, 4, 3),
        (64, 2, 4),
        (32, 2, 4),
        (32, 2, 3),
        (32, 2, 6),
        (32, 1, 4),
        (32, 4, 4),
        (128, 4, 3),
        (128, 8, 3),
    )
)
CUT: Sequence[tuple[str, Sequence[int]]] = (
    ("programs", (1, 2, 3, 4, 6, 8)),
    ("least", (1, 2, 4, 8)),
)
PREFILL_TILES: Sequence[Prefilling] = (
    Prefilling(128, 64, 8, 3),
    Prefilling(128, 64, 8, 2),
    Prefilling(128, 64, 8, 4),
    Prefilling(128, 128, 8, 2),
    Prefilling(128, 32, 8, 4),
    Prefilling(128, 64, 4, 3),
    Prefilling(64, 64, 4, 3),
    Prefilling(64, 64, 4, 2),
    Prefilling(64, 128, 4, 2),
    Prefilling(64, 32, 4, 4),
)


def score(settings: Any, steps: Iterable[Step], timer: Timer) -> float:
    """The mean of the logarithms of the steps' times; infinity where one can't be run."""
    times = [timer(settings, step) for step in steps]
    return sum(map(math.log, times)) / len(times)


def best(
    options: Sequence[AnySettings], steps: Sequence[Step], timer: Timer
) -> tuple[AnySettings, float]:
    """The option with the least score, the first of several, and its score."""
    scored = [(score(option, steps, timer), at) for at, option in enumerate(options)]
    least, at = min(scored)
    return options[at], least


def decodings() -> Iterator[Decoding]:
    """What is to be compiled before `decoding` searches."""
    for tile in DECODE_TILES:
        yield replace(Decoding(), **tile)


def decoding(looked_at: int, timer: Timer) -> tuple[Decoding, float]:
    """The best way to decode steps of so many requests, and the mean time of theirs in us.

    Tiles first, at some numbers of programs, then the pieces, a number at a time.
    """
    steps = DECODED[looked_at]
    first = [replace(tile, programs=programs) for tile in decodings() for programs in (1, 2, 4)]
    found, least = best(first, steps, timer)
    for name, values in CUT:
        options = [found, *(replace(found, **{name: value}) for value in values)]
        found, least = best(list(dict.fromkeys(options)), steps, timer)
    return found, math.exp(least)


def prefilling(timer: Timer) -> tuple[Prefilling, float]:
    """The best way to cut prompts, and the mean time of theirs in microseconds."""
    found, least = best(PREFILL_TILES, PREFILLED, timer)
    return found, math.exp(least)
