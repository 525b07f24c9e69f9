"""The same for few tokens: nothing is sorted, and each expert that was chosen is read once.

A program has some rows of one expert's weights and all tokens; who of them chose the expert it
finds in the ids by itself. Two launches: `gate_up_few`, `down_few`. The last program of `down_few`
over the same columns sums over the choices, or `combine` does.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, rounded
from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.experts.gates import gated
from infera_compat.kernels.experts.routing import local_expert


@triton.jit
def _chosen(
    ids,
    expert_map,
    slot,
    pairs,
    words,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    TOKENS: tl.constexpr,
    MAPPED: tl.constexpr,
    BY_PAIR: tl.constexpr,
):
    """The expert of a slot, or -1, and each token's last pair with it, or -1: [TOKENS].

    Slots are experts, or the pairs where there are fewer of them: the first pair of an expert has
    it.
    """
    token, choice = tl.arange(0, TOKENS), tl.arange(0, CHOICES)
    pair = token[:, None] * TOP_K + choice[None, :]
    used = (choice < TOP_K)[None, :] & (pair < pairs)
    theirs = local_expert(ids, expert_map, pair, used, words, MAPPED)
    expert = slot
    if BY_PAIR:
        expert = local_expert(ids, expert_map, slot, slot < pairs, words, MAPPED)
        earlier = used & (pair < slot) & (theirs == expert)
        if tl.max(earlier.to(tl.int32)) > 0:
            expert = -1
    mine = used & (theirs == expert) & (expert >= 0)
    return expert, tl.max(tl.where(mine, pair, -1), 1)


@triton.jit
def _rows(weights, expert, rows, along, expert_step, row_step, used):
    at = weights + expert.to(tl.int64) * (expert_step * 8)
    at += rows.to(tl.int64)[:, None] * (row_step * 8) + along[None, :]
    return tl.load(at, used, 0.0)


@triton.jit
def _prefetch(
    weights,
    expert,
    rows,
    expert_step,
    row_step,
    LIMIT: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
):
    """Have the first lines of some rows of weights, 128 bytes each, brought into the L2."""
    line = tl.arange(0, LINES) * 64
    at = weights + expert.to(tl.int64) * (expert_step * 8)
    at += tl.minimum(rows, LIMIT - 1).to(tl.int64)[:, None] * (row_step * 8)
    at += tl.minimum(line, WIDE - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], tl.int32, is_pure=False, pack=1
    )


@triton.jit(
    do_not_specialize=("pairs", "words", "hidden_step", "expert_step", "row_step"),
    do_not_specialize_on_alignment=("ids", "expert_map"),
)
def gate_up_few(
    hidden,
    w13,
    inner,
    ids,
    expert_map,
    pairs,
    words,
    hidden_step,
    expert_step,
    row_step,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MAPPED: tl.constexpr,
    BY_PAIR: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """inner [pairs, INTERMEDIATE]: activation(gate) * up, in the row of a token's last pair."""
    release_next(EARLY)
    expert, pair = _chosen(
        ids, expert_map, tl.program_id(1), pairs, words,
        TOP_K, CHOICES, TOKENS, MAPPED, BY_PAIR,
    )  # fmt: skip
    if tl.max(pair) >= 0:
        has = pair >= 0
        token = tl.arange(0, TOKENS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < INTERMEDIATE
        along = tl.arange(0, DEPTH)
        states = hidden + token.to(tl.int64)[:, None] * (hidden_step * 8)
        gate = tl.zeros([TOKENS, COLUMNS], tl.float32)
        up = tl.zeros([TOKENS, COLUMNS], tl.float32)
        for first in range(0, HIDDEN, DEPTH):
            depth = first + along
            read, used = has[:, None], inside[:, None]
            if HIDDEN % DEPTH != 0:
                read = read & (depth < HIDDEN)[None, :]
                used = used & (depth < HIDDEN)[None, :]
            state = tl.load(states + depth[None, :], read, 0.0)
            its = _rows(w13, expert, column, depth, expert_step, row_step, used)
            gate = add_product(gate, state, its)
            its = _rows(w13, expert, INTERMEDIATE + column, depth, expert_step, row_step, used)
            up = add_product(up, state, its)
        value = rounded(gated(gate, up, ACTIVATION), inner.dtype.element_ty)
        where = inner + pair.to(tl.int64)[:, None] * INTERMEDIATE + column[None, :]
        tl.store(where, value, has[:, None] & inside[None, :])


@triton.jit(
    do_not_specialize=("pairs", "words", "out_step", "expert_step", "row_step"),
    do_not_specialize_on_alignment=("ids", "expert_map", "weights"),
)
def down_few(
    inner,
    w2,
    partial,
    weights,
    ids,
    expert_map,
    out,
    counters,
    pairs,
    words,
    out_step,
    expert_step,
    row_step,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    TOP_K: tl.constexpr,
    CHOICES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MAPPED: tl.constexpr,
    BY_PAIR: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    MERGE: tl.constexpr,
    LINES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """partial [pairs, HIDDEN]: each pair's share of its token, weighted; where MERGE, out too.

    counters: [column tiles], int32, zeros, and zeros again; used where MERGE. LINES: of each row of
    weights, asked for while the launch before still runs, where EARLY.
    """
    release_next(EARLY)
    expert, last = _chosen(
        ids, expert_map, tl.program_id(1), pairs, words,
        TOP_K, CHOICES, TOKENS, MAPPED, BY_PAIR,
    )  # fmt: skip
    token = tl.arange(0, TOKENS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < HIDDEN
    if EARLY and LINES > 0:
        _prefetch(
            w2, tl.maximum(expert, 0), column, expert_step, row_step, HIDDEN, INTERMEDIATE, LINES
        )
    await_previous(EARLY)
    if tl.max(last) >= 0:
        has = last >= 0
        along = tl.arange(0, DEPTH)
        states = inner + last.to(tl.int64)[:, None] * INTERMEDIATE
        share = tl.zeros([TOKENS, COLUMNS], tl.float32)
        for first in range(0, INTERMEDIATE, DEPTH):
            depth = first + along
            read, used = has[:, None], inside[:, None]
            if INTERMEDIATE % DEPTH != 0:
                read = read & (depth < INTERMEDIATE)[None, :]
                used = used & (depth < INTERMEDIATE)[None, :]
            state = tl.load(states + depth[None, :], read, 0.0)
            its = _rows(w2, expert, column, depth, expert_step, row_step, used)
            share = add_product(share, state, its)
        for choice in tl.static_range(TOP_K):
            pair = token * TOP_K + choice
            theirs = local_expert(ids, expert_map, pair, pair < pairs, words, MAPPED)
            mine = theirs == expert
            value = share
            if WEIGHTED:
                value = share * tl.load(weights + pair, mine & has, 0.0)[:, None]
            where = partial + pair.to(tl.int64)[:, None] * HIDDEN + column[None, :]
            value = rounded(value, partial.dtype.element_ty)
            tl.store(where, value, (mine & has)[:, None] & inside[None, :])
    if MERGE:
        # Every thread's stores come before the ticket; the last one's holder sees all of them.
        tl.debug_barrier()
        ticket = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if ticket == tl.num_programs(1) - 1:
            tl.store(counters + tl.program_id(0), 0)
            summed = tl.zeros([TOKENS, COLUMNS], tl.float32)
            for choice in tl.static_range(TOP_K):
                pair = token * TOP_K + choice
                theirs = local_expert(ids, expert_map, pair, pair < pairs, words, MAPPED)
                where = partial + pair.to(tl.int64)[:, None] * HIDDEN + column[None, :]
                used = (theirs >= 0)[:, None] & inside[None, :]
                # Not from L1, which knows nothing of what other SMs wrote.
                value = tl.load(where, used, 0.0, cache_modifier=".cg")
                summed += value.to(tl.float32)
            where = out + token.to(tl.int64)[:, None] * (out_step * 8) + column[None, :]
            summed = rounded(summed, out.dtype.element_ty)
            tl.store(where, summed, (token * TOP_K < pairs)[:, None] & inside[None, :])
