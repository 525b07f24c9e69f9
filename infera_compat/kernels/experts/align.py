"""Pairs of a token and a choice, sorted by local expert and cut into tiles of rows, on the device.

Two launches, or one where all pairs fit into one block: `count` has a histogram of each block of
pairs; each program of `place` adds up the histograms, which tells it where its own pairs go. The
order of an expert's pairs is not fixed. Nobody sees that: a row's result does not depend on the
rows beside it.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.experts.routing import local_expert

FIELDS = 5
"""Numbers that say what a tile is; see `place`."""


@triton.jit(
    do_not_specialize=("pairs", "words"), do_not_specialize_on_alignment=("ids", "expert_map")
)
def count(
    ids,
    expert_map,
    counts,
    pairs,
    words,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A histogram of each block: counts [blocks, BINS], int32. The last bin: no expert."""
    release_next(EARLY)
    block = tl.program_id(0)
    pair = block * BLOCK + tl.arange(0, BLOCK)
    expert = local_expert(ids, expert_map, pair, pair < pairs, words, MAPPED)
    found = tl.histogram(tl.where(expert < 0, BINS - 1, expert), BINS)
    tl.store(counts + block * BINS + tl.arange(0, BINS), found)


@triton.jit(
    do_not_specialize=("pairs", "words", "blocks", "most"),
    do_not_specialize_on_alignment=("ids", "expert_map"),
)
def place(
    ids,
    expert_map,
    counts,
    cursors,
    order,
    tiles,
    total,
    pairs,
    words,
    blocks,
    most,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    ALONE: tl.constexpr,
    COUNTS: tl.constexpr,
    TILES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Sort the pairs, and list the tiles.

    counts: [blocks, BINS], what `count` found; not read where ALONE, with one block.
    cursors: [blocks, BINS], int32, scratch. order: [pairs], int32: the pairs by expert; those
    without one are not in it. tiles: [FIELDS, most], int32: of each tile of ROWS rows at most its
    expert, the first of the expert's tiles, their number, the expert's first row in `order` and the
    row after its last. total: how many tiles there are. COUNTS, TILES: rows of `counts`, and tiles,
    at a time.
    """
    release_next(EARLY)
    block = tl.program_id(0)
    bins = tl.arange(0, BINS)
    pair = block * BLOCK + tl.arange(0, BLOCK)
    expert = local_expert(ids, expert_map, pair, pair < pairs, words, MAPPED)
    before = tl.zeros([BINS], tl.int32)
    if ALONE:
        of_expert = tl.histogram(tl.where(expert < 0, BINS - 1, expert), BINS)
    else:
        await_previous(EARLY)
        of_expert = tl.zeros([BINS], tl.int32)
        for first in range(0, blocks, COUNTS):
            other = first + tl.arange(0, COUNTS)
            found = tl.load(
                counts + other[:, None] * BINS + bins[None, :], (other < blocks)[:, None], 0
            )
            of_expert += tl.sum(found, 0)
            before += tl.sum(tl.where((other < block)[:, None], found, 0), 0)
    of_expert = tl.where(bins == BINS - 1, 0, of_expert)
    ends = tl.cumsum(of_expert, 0)
    begins = ends - of_expert
    tl.store(cursors + block * BINS + bins, begins + before)
    tl.debug_barrier()  # other threads of this program count on from there
    row = tl.atomic_add(cursors + block * BINS + expert, 1, expert >= 0, sem="relaxed")
    tl.store(order + row, pair, expert >= 0)

    tiles_of = (of_expert + (ROWS - 1)) // ROWS
    tile_ends = tl.cumsum(tiles_of, 0)
    found_tiles = tl.sum(tiles_of, 0)
    if block == 0:
        tl.store(total, found_tiles)
    for first in range(block * TILES, found_tiles, blocks * TILES):
        tile = first + tl.arange(0, TILES)
        its = tl.sum((tile_ends[None, :] <= tile[:, None]).to(tl.int32), 1)
        same = bins[None, :] == its[:, None]
        at, used = tiles + tile, tile < found_tiles
        tl.store(at, its, used)
        tl.store(at + most, _of(same, tile_ends - tiles_of), used)
        tl.store(at + 2 * most, _of(same, tiles_of), used)
        tl.store(at + 3 * most, _of(same, begins), used)
        tl.store(at + 4 * most, _of(same, ends), used)


@triton.jit
def _of(same, values):
    return tl.sum(tl.where(same, values[None, :], 0), 1)
