"""Times plans on the GPU that is here: calls in a CUDA graph, each on inputs of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from triton.runtime.errors import OutOfResources

from infera_compat.kernels import replays
from infera_compat.kernels.experts import sources
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsSpec
from infera_compat.kernels.experts.launches import launch
from infera_compat.kernels.experts.plans import Few, Plan
from infera_compat.kernels.experts.scratch import Sorting, few_bytes

SETS = 4
"""Inputs with ids of their own, so that few tokens do not find their experts' weights in the L2."""
MOST_CALLS, FEWEST_CALLS = 8, 2
"""Of a graph: the fewer, the longer one takes."""
GRAPH_US = 4000.0
"""What a graph lasts, where its calls are not too few or too many."""


class Layer:
    """A layer with random weights, whose calls are timed."""

    def __init__(self, spec: ExpertsSpec, device: torch.device, seed: int = 0) -> None:
        """Make the weights."""
        self.spec, self.device = spec, device
        self._random = torch.Generator(device).manual_seed(seed)
        self.w13 = self._numbers(spec.experts, 2 * spec.intermediate, spec.hidden)
        self.w2 = self._numbers(spec.experts, spec.hidden, spec.intermediate)

    def _numbers(self, *shape: int) -> torch.Tensor:
        values = torch.empty(shape, dtype=self.spec.dtype, device=self.device)
        return values.normal_(std=shape[-1] ** -0.5, generator=self._random)

    def calls(self, tokens: int) -> list[ExpertsCall]:
        """SETS calls that share their scratch; the router chooses evenly."""
        spec, like = self.spec, {"dtype": self.spec.dtype, "device": self.device}
        narrow, wide = (
            max(size, spec.hidden) for size in (spec.intermediate, 2 * spec.intermediate)
        )
        pairs = tokens * spec.top_k
        first, second = torch.empty(pairs * narrow, **like), torch.empty(pairs * wide, **like)
        made = []
        for _ in range(SETS):
            chance = torch.rand((tokens, spec.experts), generator=self._random, device=self.device)
            weights, ids = chance.topk(spec.top_k)
            made.append(
                ExpertsCall(
                    spec=spec,
                    hidden_states=self._numbers(tokens, spec.hidden),
                    w13=self.w13,
                    w2=self.w2,
                    topk_weights=weights,
                    topk_ids=ids.to(torch.int32),
                    out=torch.empty(tokens, spec.hidden, **like),
                    workspace13=first,
                    workspace2=second,
                )
            )
        return made


def equipped(calls: Sequence[ExpertsCall], plan: Plan, bucket: int) -> list[ExpertsCall]:
    """The calls with a workspace and counters for a plan, all with the same."""
    spec, tokens = calls[0].spec, calls[0].hidden_states.shape[0]
    columns = 0
    if isinstance(plan, Few):
        count = few_bytes(spec, tokens)
        columns = -(-spec.hidden // plan.down.columns)
    else:
        count = Sorting.of(spec, bucket, tokens, plan.rows).bytes(spec.experts)
    device = calls[0].hidden_states.device
    space = torch.empty(count, dtype=torch.uint8, device=device)
    counters = torch.zeros(max(1, columns), dtype=torch.int32, device=device)
    return [dataclasses.replace(it, workspace=space, counters=counters) for it in calls]


def timer(calls: Sequence[ExpertsCall], bucket: int) -> Callable[[Plan], float]:
    """What `search` wants: the median of a few replays, in microseconds a call."""

    def time(plan: Plan) -> float:
        ready = equipped(calls, plan, bucket)
        try:
            launch(ready[0], plan, bucket)
        except OutOfResources:
            return math.inf
        once = replays.events_us(lambda: launch(ready[1 % len(ready)], plan, bucket))
        count = max(FEWEST_CALLS, min(MOST_CALLS, math.ceil(GRAPH_US / once)))

        def run() -> None:
            for number in range(count):
                launch(ready[number % len(ready)], plan, bucket)

        return replays.graph_us(run) / count

    return time


def compile_one(spec: ExpertsSpec, bucket: int, plan: Plan) -> bool:
    """Launch a plan on a call that has nothing to do; False where the GPU has no room for it."""
    device = torch.device(spec.device)
    try:
        launch(sources.idle(spec, bucket, plan, device), plan, bucket)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except OutOfResources:
        return False
    return True
