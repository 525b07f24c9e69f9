"""The sum over a token's choices, in the order of the choices and in float32."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import rounded
from infera_compat.kernels.dependents import await_previous
from infera_compat.kernels.experts.routing import local_expert


@triton.jit(
    do_not_specialize=("words", "row"), do_not_specialize_on_alignment=("ids", "expert_map")
)
def combine(
    partial,
    ids,
    expert_map,
    out,
    words,
    row,
    HIDDEN: tl.constexpr,
    TOP_K: tl.constexpr,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out [tokens, HIDDEN] from partial [tokens, TOP_K, HIDDEN]; a program a token and BLOCK.

    row: from one row of out to the next, in units of eight elements. A pair without a local expert
    is not read.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    summed = tl.zeros([BLOCK], tl.float32)
    await_previous(EARLY)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        expert = local_expert(ids, expert_map, pair, True, words, MAPPED)
        value = tl.load(partial + pair * HIDDEN + column, inside & (expert >= 0), 0.0)
        summed += value.to(tl.float32)
    summed = rounded(summed, out.dtype.element_ty)
    tl.store(out + token * (row * 8) + column, summed, inside)
