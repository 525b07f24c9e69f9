"""Keys in pieces of about the same length, and what adds pieces up: inlined into a kernel.

A piece is some key tiles of one request. How long pieces are follows from all lengths, which are
read on the device: a long request has more of them than a short one, and all together are about as
many as the GPU holds at once. So the grid depends on shapes alone and one CUDA graph serves all
lengths. Programs that find no piece end at once.
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.0e30)
"""A score below all others, and finite: the difference of two of them is no NaN."""


@triton.jit
def cut(tiles, wanted, least):
    """How requests of so many key tiles are cut: (tiles of a piece, pieces of each request).

    tiles: [BLOCK_B], int32. wanted: pieces in all; there are less than wanted + requests. least:
    tiles of a piece.
    """
    each = tl.maximum(tl.cdiv(tl.sum(tiles, 0), wanted), least)
    return each, tl.cdiv(tiles, each)


@triton.jit
def own(count, unit):
    """Which request a piece is of, and how many pieces come before that request's.

    count: [BLOCK_B], int32, pieces of each request. unit: the piece.
    """
    reach = tl.cumsum(count, 0)
    passed = reach <= unit
    return tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(passed, reach, 0), 0)


@triton.jit
def of_request(count, request, BLOCK_B: tl.constexpr):
    """How many pieces come before a request's, and how many it has. count: [BLOCK_B]."""
    number = tl.arange(0, BLOCK_B)
    before = tl.sum(tl.where(number < request, count, 0), 0)
    return before, tl.sum(tl.where(number == request, count, 0), 0)


@triton.jit
def keep(
    partial, stats, place, row, channel, acc, most, total,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write a piece's sums. place: among all pieces' tiles. row, channel: of acc.

    partial: [places, ROWS, BLOCK_D], float32: sums of weighted values.
    stats: [places, 2, ROWS], float32: the largest score, the sum of weights.
    """
    kept = row < ROWS  # the rows after them are nobody's
    cells = place.to(tl.int64) * (ROWS * BLOCK_D)
    tl.store(partial + cells + row[:, None] * BLOCK_D + channel[None, :], acc, kept[:, None])
    tl.store(stats + place * (2 * ROWS) + row, most, kept)
    tl.store(stats + place * (2 * ROWS) + ROWS + row, total, kept)


@triton.jit
def added(
    partial, stats, first, some, step, row, channel,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """A row of some pieces, added up: (sums [1, BLOCK_D], largest score [1], sum of weights [1]).

    first: the place of the first piece; step: from a piece's place to the next one's. row: within
    a tile. AT_ONCE: pieces that are read at once. The order is fixed, so the bits are the same
    each time.
    """
    most = tl.full([1], LOWEST, tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, BLOCK_D], tl.float32)
    for at in range(0, some, AT_ONCE):
        piece = at + tl.arange(0, AT_ONCE)
        there = piece < some
        place = first + piece * step
        stat = stats + place * (2 * ROWS) + row
        mosts = tl.load(stat, there, LOWEST)
        totals = tl.load(stat + ROWS, there, 0.0)
        cells = place.to(tl.int64) * (ROWS * BLOCK_D) + row * BLOCK_D
        values = tl.load(partial + cells[:, None] + channel[None, :], there[:, None], 0.0)
        now = tl.maximum(most, tl.max(mosts, 0))
        weights, kept = tl.exp2(mosts - now), tl.exp2(most - now)
        total = total * kept + tl.sum(totals * weights, 0)
        acc = acc * kept[:, None] + tl.sum(values * weights[:, None], 0)[None, :]
        most = now
    return acc, most, total
