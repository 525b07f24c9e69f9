"""A call as launches of Triton's functions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from infera_compat.errors import CompatError
from infera_compat.kernels.experts import across, align, combine, decode, gemm
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsSpec
from infera_compat.kernels.experts.plans import Few, Plan, Sorted, Tile
from infera_compat.kernels.experts.scratch import Sorting, power_of_two
from infera_compat.kernels.limits import Limits

EIGHT = 8
"""Strides are handed over in units of eight elements, so that Triton knows them to be multiples."""
COUNTED = 8192
"""Numbers of histograms that a program has in registers at once."""
WIDEST = 1024
"""Columns of a program of `combine`, at most."""


@functools.cache
def processors(device: torch.device) -> int:
    """SMs of a device; 1 for the interpreter's."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass(frozen=True)
class Ids:
    """The router's choices as the kernels read them.

    words: numbers of four bytes of an id. weights: None where spec.weights_on_input.
    """

    ids: torch.Tensor
    words: int
    expert_map: torch.Tensor | None
    weights: torch.Tensor | None
    pairs: int

    @classmethod
    def of(cls, call: ExpertsCall) -> Ids:
        """Of a call, contiguous."""
        ids = call.topk_ids.contiguous()
        weights = None if call.spec.weights_on_input else call.topk_weights.contiguous()
        words = ids.element_size() // 4
        return cls(ids.view(torch.int32), words, call.expert_map, weights, call.topk_ids.numel())


def steps(what: str, tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides but the last, in units of eight elements; CompatError where they are none."""
    *others, last = tensor.stride()
    if last != 1 or any(step % EIGHT for step in others):
        raise CompatError(
            f"infera_experts can't read {what}",
            found=f"strides {tuple(tensor.stride())}",
            expected=f"1 for the last, multiples of {EIGHT} for the others",
            do="Set INFERA_MOE=off.",
        )
    return tuple(step // EIGHT for step in others)


def launch(call: ExpertsCall, plan: Plan, bucket: int) -> None:
    """Run a call. bucket: that of the plan; the call may be smaller, and have no tokens at all."""
    if isinstance(plan, Few):
        few(call, plan, bucket)
    else:
        sorted_by_expert(call, plan, bucket)


def _options(tile: Tile, follows: bool, early: bool) -> dict[str, Any]:
    """How Triton launches a function. follows: a launch of this call."""
    overlap = {"launch_pdl": True} if follows and early else {}
    return {"num_warps": tile.warps, "num_stages": tile.stages, **overlap}


def _of(spec: ExpertsSpec) -> dict[str, Any]:
    return {"HIDDEN": spec.hidden, "INTERMEDIATE": spec.intermediate}


def few(call: ExpertsCall, plan: Few, bucket: int) -> None:
    """Two launches, and a third one where the second does not sum."""
    spec, chosen = call.spec, Ids.of(call)
    early = Limits.of(spec).early
    by_pair = bucket * spec.top_k < spec.experts
    slots = max(1, chosen.pairs) if by_pair else spec.experts
    inner = _scratch(call).view(spec.dtype)
    partial = call.workspace2
    routing = {
        "TOP_K": spec.top_k,
        "CHOICES": power_of_two(spec.top_k),
        "MAPPED": spec.mapped,
        "BY_PAIR": by_pair,
        "TOKENS": max(16, bucket),
        "EARLY": early,
    }
    (hidden_step,) = steps("the hidden states", call.hidden_states)
    (out_step,) = steps("out", call.out)
    tile = plan.gate_up
    decode.gate_up_few[triton.cdiv(spec.intermediate, tile.columns), slots](
        call.hidden_states, call.w13, inner, chosen.ids, chosen.expert_map,
        chosen.pairs, chosen.words, hidden_step, *steps("w13", call.w13),
        **_of(spec), **routing, ACTIVATION=spec.activation,
        COLUMNS=tile.columns, DEPTH=tile.depth, **_options(tile, False, early),
    )  # fmt: skip
    tile = plan.down
    decode.down_few[triton.cdiv(spec.hidden, tile.columns), slots](
        inner, call.w2, partial, chosen.weights, chosen.ids, chosen.expert_map, call.out,
        call.counters if plan.merge else None,
        chosen.pairs, chosen.words, out_step, *steps("w2", call.w2),
        **_of(spec), **routing, WEIGHTED=not spec.weights_on_input,
        COLUMNS=tile.columns, DEPTH=tile.depth, MERGE=plan.merge,
        LINES=plan.lines, **_options(tile, True, early),
    )  # fmt: skip
    if not plan.merge:
        _combine(call, chosen, early)


def sorted_by_expert(call: ExpertsCall, plan: Sorted, bucket: int) -> None:
    """Four launches, and a fifth one where pairs are more than one block."""
    spec, chosen = call.spec, Ids.of(call)
    limits = Limits.of(spec)
    tma, early = limits.tma, limits.early
    tokens = call.hidden_states.shape[0]
    sorting = Sorting.of(spec, bucket, tokens, plan.rows)
    counts, cursors, order, tiles, total = sorting.cut(_scratch(call), spec.experts)
    most = sorting.most(spec.experts)
    alone = bucket * spec.top_k <= sorting.block
    pairs = {"MAPPED": spec.mapped, "BLOCK": sorting.block, "BINS": sorting.bins, "EARLY": early}
    warps = {"num_warps": 8 if sorting.block == 1024 else 4}
    follows = {"launch_pdl": True} if early and not alone else {}
    if not alone:
        align.count[(sorting.blocks,)](
            chosen.ids, chosen.expert_map, counts, chosen.pairs, chosen.words, **pairs, **warps
        )
    align.place[(sorting.blocks,)](
        chosen.ids, chosen.expert_map, counts, cursors, order, tiles, total,
        chosen.pairs, chosen.words, sorting.blocks, most,
        **pairs, ROWS=plan.rows, ALONE=alone, COUNTS=max(1, COUNTED // sorting.bins), TILES=16,
        **warps, **follows,
    )  # fmt: skip

    (hidden_step,) = steps("the hidden states", call.hidden_states)
    w13_steps, w2_steps = steps("w13", call.w13), steps("w2", call.w2)
    shared = {**_of(spec), "ROWS": plan.rows, "TMA": tma, "EARLY": early}
    inner = call.workspace13.view(-1)[: max(1, chosen.pairs) * spec.intermediate]
    inner = inner.view(-1, spec.intermediate)
    tile = plan.gate_up
    gemm.gate_up[_programs(tile, spec.intermediate, most, call)](
        call.hidden_states, _weights(call.w13, tile, tma), inner, order, tiles, total,
        most, hidden_step, *w13_steps,
        **shared, **_shape(tile), TOP_K=spec.top_k, ACTIVATION=spec.activation,
        **_options(tile, True, early),
    )  # fmt: skip
    tile = plan.down
    states = TensorDescriptor.from_tensor(inner, [plan.rows, tile.depth]) if tma else inner
    down = across.down_across if tile.across else gemm.down
    down[_programs(tile, spec.hidden, most, call)](
        states, _weights(call.w2, tile, tma), call.workspace2, chosen.weights, order, tiles, total,
        most, *w2_steps,
        **shared, **_shape(tile), WEIGHTED=not spec.weights_on_input,
        **_options(tile, True, early),
    )  # fmt: skip
    _combine(call, chosen, early)


def _scratch(call: ExpertsCall) -> torch.Tensor:
    if call.workspace is None:
        raise CompatError(
            "infera_experts has no workspace",
            found="None",
            expected="the bytes that it asked for",
            do="Set INFERA_MOE=off, and tell us what called it.",
        )
    return call.workspace


def _shape(tile: Tile) -> dict[str, Any]:
    form = {"ACROSS": tile.across} if tile.across else {"FLATTEN": tile.per_sm > 0}
    return {"COLUMNS": tile.columns, "DEPTH": tile.depth, "GROUP": tile.group, **form}


def _programs(tile: Tile, size: int, most: int, call: ExpertsCall) -> tuple[int]:
    """A program a tile, or as many as run at once. size: columns of the product."""
    tiles = most * triton.cdiv(triton.cdiv(size, tile.columns), max(1, tile.across))
    if tile.per_sm:
        tiles = min(tiles, tile.per_sm * processors(call.hidden_states.device))
    return (tiles,)


def _weights(weights: torch.Tensor, tile: Tile, tma: bool) -> Any:
    """A descriptor of [1, columns, depth] of the weights, or the tensor itself."""
    if not tma:
        return weights
    return TensorDescriptor.from_tensor(weights, [1, tile.columns, tile.depth])


def _combine(call: ExpertsCall, chosen: Ids, early: bool) -> None:
    spec = call.spec
    (out_step,) = steps("out", call.out)
    block = min(WIDEST, power_of_two(spec.hidden))
    combine.combine[(call.hidden_states.shape[0] or 1, triton.cdiv(spec.hidden, block))](
        call.workspace2, chosen.ids, chosen.expert_map, call.out, chosen.words, out_step,
        HIDDEN=spec.hidden, TOP_K=spec.top_k, MAPPED=spec.mapped, BLOCK=block, EARLY=early,
        num_warps=4, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
