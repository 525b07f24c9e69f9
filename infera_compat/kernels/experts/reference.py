"""The experts of a MoE layer in plain torch, on a CPU or a GPU: what others are measured against.

In float32, and slow. Pairs of a token and an expert are sorted on the device and cut into tiles of
one expert each, so a CUDA graph of it may be replayed with other ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional as F

from infera_compat.kernels.experts.contract import (
    ACTIVATIONS,
    GELU,
    GELU_TANH,
    SILU,
    ExpertsCall,
    ExpertsKernel,
    ExpertsSpec,
)
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.tiles import cut, tile_size

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
BUDGET = 256 << 20
"""Bytes for the weights of some tiles, and for the results of some tokens, in float32. The weights
of one expert are taken whole, however large."""

GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    SILU: F.silu,
    GELU: functools.partial(F.gelu, approximate="none"),
    GELU_TANH: functools.partial(F.gelu, approximate="tanh"),
}


def _local(ids: torch.Tensor, expert_map: torch.Tensor | None, experts: int) -> torch.Tensor:
    """The local expert of each id, or `experts` where there is none: [any], int64."""
    ids = ids.to(torch.int64)
    if expert_map is not None:
        # -1 would read the map's last entry.
        ids = torch.where(ids < 0, -1, expert_map.to(torch.int64)[ids.clamp(min=0)])
    return torch.where(ids < 0, experts, ids)


class ReferenceExperts(ExpertsKernel):
    """Every shape and flag of the contract, over weights of a plain float type."""

    name = "reference_experts"

    def supports(self, spec: ExpertsSpec) -> Reason | None:
        """All but quantized weights."""
        if spec.dtype not in FLOATS:
            floats = ", ".join(str(dtype) for dtype in FLOATS)
            return Reason(f"weights of {spec.dtype}", f"one of {floats}")
        if spec.activation not in GATES:
            return Reason(f"activation {spec.activation}", f"one of {', '.join(ACTIVATIONS)}")
        return None

    def run(self, call: ExpertsCall) -> None:
        """Write all rows of out. Scratch is not touched."""
        tokens, hidden = call.hidden_states.shape
        step = max(1, BUDGET // (4 * hidden * call.topk_ids.shape[1]))
        for begin in range(0, tokens, step):
            self._run(call, slice(begin, min(begin + step, tokens)))

    def _run(self, call: ExpertsCall, some: slice) -> None:
        """The same for some of the tokens."""
        experts, rows, hidden = call.w13.shape
        tokens = call.hidden_states[some]
        top_k = call.topk_ids.shape[1]
        local = _local(call.topk_ids[some], call.expert_map, experts).flatten()
        count = local.shape[0]
        # Sorted by expert; pairs without a local one come last, after the end of the last group.
        by_expert, order = torch.sort(local, stable=True)
        starts = torch.searchsorted(by_expert, torch.arange(experts + 1, device=local.device))
        expert, offset, used = cut(starts, count, tile_size(count, experts))
        place = (starts[expert][:, None] + offset).clamp(max=count - 1)
        # A pair's row of `results`; one row more takes the rows of tiles that hold no pair.
        pair = torch.where(used, order[place], count)
        results = tokens.new_zeros((count + 1, hidden), dtype=torch.float32)
        gate = GATES[call.spec.activation]
        at_once = max(1, BUDGET // (4 * rows * hidden))
        for begin in range(0, expert.shape[0], at_once):
            tiles = slice(begin, begin + at_once)
            token = (pair[tiles] // top_k).clamp(max=tokens.shape[0] - 1)
            inner = torch.matmul(tokens[token].float(), call.w13[expert[tiles]].float().mT)
            inner = gate(inner[..., : rows // 2]) * inner[..., rows // 2 :]
            result = torch.matmul(inner, call.w2[expert[tiles]].float().mT)
            results.index_copy_(0, pair[tiles].flatten(), result.flatten(0, 1))
        results = results[:count].unflatten(0, (-1, top_k))
        if not call.spec.weights_on_input:
            # A weight without an expert may be anything, and zero times NaN is NaN.
            weights = call.topk_weights[some].float()
            weights = torch.where(local.view_as(weights) < experts, weights, 0.0)
            results = results * weights[..., None]
        call.out[some].copy_(results.sum(1))


KERNEL = ReferenceExperts()
