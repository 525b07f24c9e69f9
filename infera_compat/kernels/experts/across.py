"""The second product where an expert's inner size is small: rows stay, and column tiles pass by.

A tile of few channels has few steps, so what begins and ends it is most of its time. Here a program
has a row tile's channels all at once, and its loop is over columns: the next tile's weights are on
their way while this one is multiplied and stored.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, rounded
from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.experts.gemm import block_of, state_of, tile_at


@triton.jit(
    do_not_specialize=("most", "expert_step", "row_step"),
    do_not_specialize_on_alignment=("weights",),
)
def down_across(
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
    ACROSS: tl.constexpr,
    TMA: tl.constexpr,
    EARLY: tl.constexpr,
):
    """As `gemm.down`: partial [pairs, HIDDEN], rows by pair, each pair's share of its token.

    ACROSS: neighbouring column tiles of a program.
    """
    release_next(EARLY)
    all_columns: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    spans: tl.constexpr = (all_columns + ACROSS - 1) // ACROSS
    pieces: tl.constexpr = (INTERMEDIATE + DEPTH - 1) // DEPTH
    await_previous(EARLY)
    found = tl.load(total) * spans
    for tile in tl.range(tl.program_id(0), found, tl.num_programs(0)):
        expert, begin, end, below, right = tile_at(tiles, most, tile, spans, GROUP)
        top = begin + below * ROWS
        row = top + tl.arange(0, ROWS)
        pair = tl.load(order + row, row < end, 0)
        if WEIGHTED:
            weight = tl.load(weights + pair, row < end, 0.0)
        states = ()
        for piece in tl.static_range(pieces):
            state = state_of(inner, top, piece * DEPTH, end, INTERMEDIATE, ROWS, DEPTH, TMA)
            states = states + (state,)  # noqa: RUF005  Triton unpacks no tuple
        where = partial + pair.to(tl.int64)[:, None] * HIDDEN
        first = right * ACROSS
        last = tl.minimum(first + ACROSS, all_columns)
        for at in tl.range(first, last):
            column = at * COLUMNS
            share = tl.zeros([ROWS, COLUMNS], tl.float32)
            for piece in tl.static_range(pieces):
                its = block_of(
                    w2, expert, column, piece * DEPTH, expert_step, row_step,
                    HIDDEN, INTERMEDIATE, COLUMNS, DEPTH, TMA,
                )  # fmt: skip
                share = add_product(share, states[piece], its)
            if WEIGHTED:
                share *= weight[:, None]
            columns = column + tl.arange(0, COLUMNS)
            value = rounded(share, partial.dtype.element_ty)
            used = (row < end)[:, None]
            if HIDDEN % COLUMNS != 0:
                used = used & (columns < HIDDEN)[None, :]
            tl.store(where + columns[None, :], value, used)
