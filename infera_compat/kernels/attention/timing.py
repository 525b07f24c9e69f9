"""Times settings of attention on the GPU that is here: calls in a CUDA graph, from a cold cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from infera_compat.kernels import pieces, replays
from infera_compat.kernels.attention import infera_attention, infera_decode
from infera_compat.kernels.attention.contract import AttentionCall, AttentionSizes, AttentionSpec
from infera_compat.kernels.attention.nothing import nothing_to_do
from infera_compat.kernels.attention.settings import TUNED_QUERIES, Decoding, Prefilling
from infera_compat.kernels.attention.tuning import CUT, Step

CACHE_BYTES = 4 << 30
"""Of keys and values together: many times an L2, and room for the largest step."""
MOST_CALLS = 24
STEP_BYTES = 256 << 20
"""What the calls of a graph read in all, at least, where they are not too many."""


def launcher(
    spec: AttentionSpec, settings: Decoding | Prefilling, looked_at: int
) -> Callable[[AttentionCall], None]:
    """What serves a call by some settings."""
    if isinstance(settings, Decoding):
        return infera_decode.Variant(spec, TUNED_QUERIES, looked_at, settings).launch
    return infera_attention.Variant(spec, looked_at, settings).launch


def scratch(spec: AttentionSpec, device: torch.device) -> torch.Tensor:
    """A workspace for every candidate."""
    most = replace(Decoding(), programs=max(dict(CUT)["programs"]))
    bytes_ = infera_decode.Variant(spec, TUNED_QUERIES, pieces.LOOKED_AT[-1], most).bytes
    return torch.empty(bytes_, dtype=torch.uint8, device=device)


@dataclass(frozen=True)
class Layer:
    """A layer with a cache of random keys and values."""

    spec: AttentionSpec
    device: torch.device
    seed: int = 0

    @cached_property
    def _random(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(self.seed)

    @cached_property
    def _caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        spec = self.spec
        page = (spec.block_size, spec.kv_heads, spec.head_size)
        size = 2 * 2 * math.prod(int(each) for each in page if each)
        both = torch.empty((2, CACHE_BYTES // size, *page), dtype=spec.dtype, device=self.device)
        both.normal_(generator=self._random)
        return both[0], both[1]

    @cached_property
    def _scratch(self) -> torch.Tensor:
        return scratch(self.spec, self.device)

    def calls(self, step: Step) -> list[AttentionCall]:
        """Calls of a step, each over other blocks, as long as there are any."""
        spec, like = self.spec, {"dtype": torch.int32, "device": self.device}
        assert spec.block_size is not None
        keys, values = self._caches
        each = -(-step.length // spec.block_size)
        blocks = step.requests * each
        read = 2 * 2 * blocks * spec.block_size * spec.kv_heads * spec.head_size
        count = max(1, min(MOST_CALLS, len(keys) // blocks, -(-STEP_BYTES // read)))
        dealt = torch.randperm(len(keys), generator=self._random, device=self.device)
        tokens = step.requests * step.new
        shape = (tokens, spec.heads, spec.head_size)
        query = torch.empty(shape, dtype=spec.dtype, device=self.device)
        query.normal_(generator=self._random)
        starts = torch.arange(0, tokens + 1, step.new, **like)
        return [
            AttentionCall(
                spec=spec,
                query=query,
                key_cache=keys,
                value_cache=values,
                block_table=dealt[number * blocks : (number + 1) * blocks]
                .to(torch.int32)
                .view(step.requests, each),
                seq_lens=torch.full((step.requests,), step.length, **like),
                query_start_loc=starts,
                max_query_len=step.new,
                max_seq_len=step.length,
                scale=spec.head_size**-0.5,
                out=torch.empty_like(query),
                workspace=self._scratch,
            )
            for number in range(count)
        ]

    def timer(self, looked_at: int) -> Callable[[Any, Step], float]:
        """What the search wants; the calls of a step are made once."""
        made: dict[Step, list[AttentionCall]] = {}

        def time(settings: Any, step: Step) -> float:
            if step not in made:
                made[step] = self.calls(step)
            calls, launch = made[step], launcher(self.spec, settings, looked_at)

            def run() -> None:
                for call in calls:
                    launch(call)

            try:
                return replays.graph_us(run) / len(calls)
            except OutOfResources:
                return math.inf

        return time


def compile_one(spec: AttentionSpec, settings: Decoding | Prefilling, looked_at: int) -> bool:
    """Launch settings on a call that has nothing to do; False where the GPU has no room for them.

    Triton keeps what it compiles, for other processes too.
    """
    device = torch.device(spec.device)
    space = scratch(spec, device)
    requests = pieces.numbers_of_requests(looked_at)
    sizes = AttentionSizes(tokens=requests[-1], requests=requests[-1], seq_len=1)
    launch = launcher(spec, settings, looked_at)
    try:
        for number in requests:
            for call in nothing_to_do(infera_attention.KERNEL, spec, sizes, device, number):
                launch(replace(call, workspace=space))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except OutOfResources:
        return False
    return True
