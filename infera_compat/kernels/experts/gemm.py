"""The two matrix products over pairs sorted by expert, a tile of one expert's rows at a time.

Weights come by TMA descriptors where a GPU has them, else by pointers, from the same source. Tiles
of an expert's weights follow each other, so that what several of them read is read once from HBM.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, rounded
from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.experts.gates import gated


@triton.jit
def tile_at(tiles, most, tile, SPANS: tl.constexpr, GROUP: tl.constexpr):
    """What tile number `tile` is: (expert, first row, row after the expert's last, column tile).

    SPANS: column tiles. Numbers go through the rows of GROUP row tiles of an expert first, then
    through the columns, so that those who read the same weights run at the same time.
    """
    at = tiles + tile // SPANS
    expert = tl.load(at)
    first, height = tl.load(at + most), tl.load(at + 2 * most)
    begin, end = tl.load(at + 3 * most), tl.load(at + 4 * most)
    inside = tile - first * SPANS
    top = inside // (GROUP * SPANS) * GROUP
    rows = tl.minimum(height - top, GROUP)
    inside = inside % (GROUP * SPANS)
    return expert, begin, end, top + inside % rows, inside // rows


@triton.jit
def block_of(
    weights,
    expert,
    row,
    depth,
    expert_step,
    row_step,
    LIMIT: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    TMA: tl.constexpr,
):
    """[ROWS, DEPTH] of an expert's weights [LIMIT, WIDE]; zeros outside them.

    weights: a descriptor where TMA. expert_step, row_step: strides in units of eight elements.
    """
    if TMA:
        values = tl.reshape(weights.load([expert, row, depth]), [ROWS, DEPTH])
    else:
        rows, along = row + tl.arange(0, ROWS), depth + tl.arange(0, DEPTH)
        at = weights + expert.to(tl.int64) * (expert_step * 8)
        at += rows.to(tl.int64)[:, None] * (row_step * 8) + along[None, :]
        used = (rows < LIMIT)[:, None]
        if WIDE % DEPTH != 0:
            used = used & (along < WIDE)[None, :]
        values = tl.load(at, used, 0.0)
    return values


@triton.jit
def state_of(
    inner,
    top,
    depth,
    end,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    TMA: tl.constexpr,
):
    """[ROWS, DEPTH] of inner [pairs, WIDE] from row `top` on; rows from `end` on are others'.

    inner: a descriptor where TMA.
    """
    if TMA:
        values = inner.load([top, depth])
    else:
        row, along = top + tl.arange(0, ROWS), depth + tl.arange(0, DEPTH)
        used = (row < end)[:, None]
        if WIDE % DEPTH != 0:
            used = used & (along < WIDE)[None, :]
        values = tl.load(inner + row.to(tl.int64)[:, None] * WIDE + along[None, :], used, 0.0)
    return values


@triton.jit(do_not_specialize=("most", "expert_step", "row_step", "hidden_step"))
def gate_up(
    hidden,
    w13,
    inner,
    order,
    tiles,
    total,
    most,
    hidden_step,
    expert_step,
    row_step,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    TOP_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    TMA: tl.constexpr,
    FLATTEN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """inner [pairs, INTERMEDIATE], rows in `order`: activation(gate) * up of each pair.

    Gate and up projection of the same columns are in one program, so neither is ever written.
    hidden_step: from one row of hidden to the next, in units of eight elements.
    """
    release_next(EARLY)
    across: tl.constexpr = (INTERMEDIATE + COLUMNS - 1) // COLUMNS
    await_previous(EARLY)
    found = tl.load(total) * across
    for tile in tl.range(tl.program_id(0), found, tl.num_programs(0), flatten=FLATTEN):
        expert, begin, end, down, right = tile_at(tiles, most, tile, across, GROUP)
        row = begin + down * ROWS + tl.arange(0, ROWS)
        # Rows after the last read some token's, and are not written.
        token = tl.load(order + row, row < end, 0) // TOP_K
        column = right * COLUMNS
        along = tl.arange(0, DEPTH)
        at = hidden + token.to(tl.int64)[:, None] * (hidden_step * 8) + along[None, :]
        gate = tl.zeros([ROWS, COLUMNS], tl.float32)
        up = tl.zeros([ROWS, COLUMNS], tl.float32)
        for depth in range(0, HIDDEN, DEPTH):
            if HIDDEN % DEPTH == 0:
                state = tl.load(at + depth)
            else:
                state = tl.load(at + depth, (along < HIDDEN - depth)[None, :], 0.0)
            its = block_of(
                w13, expert, column, depth, expert_step, row_step,
                2 * INTERMEDIATE, HIDDEN, COLUMNS, DEPTH, TMA,
            )  # fmt: skip
            gate = add_product(gate, state, its)
            its = block_of(
                w13, expert, INTERMEDIATE + column, depth, expert_step, row_step,
                2 * INTERMEDIATE, HIDDEN, COLUMNS, DEPTH, TMA,
            )  # fmt: skip
            up = add_product(up, state, its)
        columns = column + tl.arange(0, COLUMNS)
        value = rounded(gated(gate, up, ACTIVATION), inner.dtype.element_ty)
        where = inner + row.to(tl.int64)[:, None] * INTERMEDIATE + columns[None, :]
        tl.store(where, value, (row < end)[:, None] & (columns < INTERMEDIATE)[None, :])


@triton.jit(
    do_not_specialize=("most", "expert_step", "row_step"),
    do_not_specialize_on_alignment=("weights",),
)
def down(
    inner,
    w2,
    partial,
    weights,
    order,
    tiles,
    total,
    most,
    expert_step,
    row_step,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    TMA: tl.constexpr,
    FLATTEN: tl.constexpr,
    EARLY: tl.constexpr,
):
    """partial [pairs, HIDDEN], rows by pair: each pair's share of its token, weighted.

    inner: what gate_up wrote; a descriptor where TMA. weights: [pairs], float32, where WEIGHTED.
    """
    release_next(EARLY)
    across: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    await_previous(EARLY)
    found = tl.load(total) * across
    for tile in tl.range(tl.program_id(0), found, tl.num_programs(0), flatten=FLATTEN):
        expert, begin, end, below, right = tile_at(tiles, most, tile, across, GROUP)
        top, column = begin + below * ROWS, right * COLUMNS
        row = top + tl.arange(0, ROWS)
        pair = tl.load(order + row, row < end, 0)
        if WEIGHTED:
            weight = tl.load(weights + pair, row < end, 0.0)
        share = tl.zeros([ROWS, COLUMNS], tl.float32)
        for depth in range(0, INTERMEDIATE, DEPTH):
            state = state_of(inner, top, depth, end, INTERMEDIATE, ROWS, DEPTH, TMA)
            its = block_of(
                w2, expert, column, depth, expert_step, row_step,
                HIDDEN, INTERMEDIATE, COLUMNS, DEPTH, TMA,
            )  # fmt: skip
            share = add_product(share, state, its)
        if WEIGHTED:
            share *= weight[:, None]
        columns = column + tl.arange(0, COLUMNS)
        where = partial + pair.to(tl.int64)[:, None] * HIDDEN + columns[None, :]
        value = rounded(share, partial.dtype.element_ty)
        tl.store(where, value, (row < end)[:, None] & (columns < HIDDEN)[None, :])
