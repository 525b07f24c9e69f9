"""Paired timing on a GPU: the sides take turns, each round times all, and medians count."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Call = Callable[[int], Any]
"""One call of a side; its argument counts the calls, and says which inputs it takes."""

LEAST_US = 2000.0
"""A timed stretch lasts at least so long: events are good to about a microsecond."""
MOST_CALLS = 1024
ROUNDS = 11
WARM_UP = 2


@dataclass(frozen=True)
class Times:
    """Microseconds of one call. median: of the rounds. quartiles: the first and the third."""

    median: float
    quartiles: tuple[float, float]


def calls_for(regions: int, estimate_us: float) -> int:
    """How many calls a timed stretch has: it lasts LEAST_US, and goes over all regions alike."""
    wanted = max(1, min(MOST_CALLS, int(LEAST_US / estimate_us) + 1))
    rounds = max(1, -(-wanted // regions))
    return min(MOST_CALLS, rounds * regions)


def captured(call: Call, calls: int) -> Callable[[], None]:
    """A CUDA graph of so many calls, as what replays it; whatever they compile is compiled now."""
    import torch

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for number in range(WARM_UP):
            call(number)
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            call(number)
    return graph.replay  # type: ignore[no-any-return]


def repeated(call: Call, calls: int) -> Callable[[], None]:
    """So many calls, one launched after the other."""

    def stretch() -> None:
        for number in range(calls):
            call(number)

    return stretch


def paired(
    sides: Mapping[str, Callable[[], None]], calls: int, rounds: int = ROUNDS
) -> dict[str, Times]:
    """Time each side's stretch in turns, round for round; microseconds of one of its calls."""
    import torch

    from infera_compat.kernels import replays

    with no_garbage():
        for stretch in sides.values():
            for _ in range(WARM_UP):
                stretch()
        torch.cuda.synchronize()
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, stretch in sides.items():
                found[name].append(replays.events_us(stretch) / calls)
    return {name: _times(values) for name, values in found.items()}


@contextmanager
def no_garbage() -> Iterator[None]:
    """No collection of garbage meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _times(values: list[float]) -> Times:
    first, _, third = statistics.quantiles(values, n=4)
    return Times(statistics.median(values), (first, third))
