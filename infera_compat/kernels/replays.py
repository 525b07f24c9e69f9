"""How long launches and CUDA graphs take on a GPU, and many compilations at once."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

REPEATS, FEWEST_REPEATS = 7, 3
ENOUGH = 0.05
"""Seconds of replays, after which fewer repeats will do."""


def graph_us(run: Callable[[], None]) -> float:
    """Microseconds of what a function launches, in a CUDA graph: the median of a few replays.

    What it compiles or loads is compiled before. Raises what the function raises.
    """
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < FEWEST_REPEATS or (len(times) < REPEATS and sum(times) < 1e6 * ENOUGH):
        times.append(events_us(graph.replay))
    return statistics.median(times)


def events_us(run: Callable[[], Any]) -> float:
    """Microseconds on the GPU's clock between two events around what a function launches."""
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return 1000.0 * float(begin.elapsed_time(end))


def in_processes(
    function: Callable[..., bool],
    work: Iterable[tuple[Any, ...]],
    processes: int,
    told: Callable[[], None],
) -> int:
    """Call a function with each of some arguments, in processes of their own; returns failures.

    function: of a module; returns whether it succeeded. told: called once for each.
    """
    failed = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(function, *each) for each in dict.fromkeys(work)]
        for done in as_completed(waiting):
            failed += not done.result()
            told()
    return failed
