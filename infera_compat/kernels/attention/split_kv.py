"""Decoding: all keys of a step dealt out evenly to some programs, and merged in the same launch.

The keys of all requests and KV heads, in tiles, form one list; each program takes an equal piece
of it, wherever requests begin and end, so the programs are as many as the GPU holds at once and
none has more to do than another, whatever the lengths. What several programs hold of one head they
write down, and the one that arrives last adds it up: it knows that it is the last by a ticket. The
order of the sum is fixed, so the bits are the same each time.

After the ideas of Flash-Decoding (Dao et al., 2023) and Lean Attention (Sanovar et al., 2024).
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, product, rounded
from infera_compat.kernels.attention.paged import (
    LOWEST,
    aligned,
    bent,
    blocks,
    key_tiles,
    with_sinks,
)
from infera_compat.kernels.dependents import await_previous

NUMBERS = (
    *("requests", "qt", "qh", "kb", "ks", "kh", "vb", "vs", "vh", "tb", "ot", "oh"),
    *("scale", "merge", "least"),
)
"""Arguments whose values Triton is not to compile for."""
WHOLE_NUMBERS = ("table", "seq_lens", "starts", "sinks", "slopes")
"""Pointers that are read a number at a time: their alignment does not matter."""
LEVELS = 3
"""At most, of merging: merge ** LEVELS programs may share a head."""


@triton.jit
def piece(first, index, shifted):
    """The place in the workspace of a head's piece: two for each program, its first and its last.

    first: the program that has the head's first piece. index: of the piece. shifted: 1 where that
    first piece is not the first of its program.
    """
    return 2 * (first + index) + tl.where(index == 0, shifted, 0)


@triton.jit
def arrive(ticket, count):
    """Whether this program is the last of `count` to come here; what the others wrote is visible.

    The ticket is zero again behind the last one.
    """
    tl.debug_barrier()  # all threads of this program have written
    last = tl.atomic_add(ticket, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(ticket, 0)
    return last


@triton.jit
def add_up(
    partial,
    stats,
    first,
    shifted,
    lead,
    some,
    stride,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The sum of `some` pieces of a head, each `stride`-th from lead * stride on, in their order.

    Returns (acc [ROWS, BLOCK_D], most [ROWS], total [ROWS]).
    """
    row, channel = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    most = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for at in range(0, some, AT_ONCE):
        item = at + tl.arange(0, AT_ONCE)
        there = item < some
        place = piece(first, (lead + item) * stride, shifted)
        # .cg: another processor wrote it a moment ago.
        stat = stats + (place * (2 * ROWS))[:, None] + row[None, :]
        mosts = tl.load(stat, there[:, None], LOWEST, cache_modifier=".cg")
        totals = tl.load(stat + ROWS, there[:, None], 0.0, cache_modifier=".cg")
        cells = (place * ROWS)[:, None, None] * BLOCK_D + row[None, :, None] * BLOCK_D
        values = tl.load(
            partial + cells + channel[None, None, :],
            there[:, None, None],
            0.0,
            cache_modifier=".cg",
        )
        now = tl.maximum(most, tl.max(mosts, 0))
        weights, kept = tl.exp2(mosts - now[None, :]), tl.exp2(most - now)
        total = total * kept + tl.sum(totals * weights, 0)
        acc = acc * kept[:, None] + tl.sum(values * weights[:, :, None], 0)
        most = now
    return acc, most, total


@triton.jit
def put_down(
    partial, stats, place, acc, most, total, row, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Write a piece down; rows past ROWS are nobody's."""
    kept = row < ROWS
    channel = tl.arange(0, BLOCK_D)
    cells = place * ROWS * BLOCK_D + row[:, None] * BLOCK_D + channel[None, :]
    tl.store(partial + cells, acc, kept[:, None])
    tl.store(stats + place * (2 * ROWS) + row, most, kept)
    tl.store(stats + place * (2 * ROWS) + ROWS + row, total, kept)


@triton.jit
def finish(
    out, sinks, acc, most, total, row, begin, rows, head,
    ot, oh,
    GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Write the rows of out. row: [n], of the request and KV head; begin: the request's token."""
    valid = row < rows
    query_head = head * GROUP + row % GROUP
    if SINKS:
        acc, total = with_sinks(acc, most, total, sinks, query_head, valid)
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    channel = tl.arange(0, BLOCK_D)
    to = out + ((begin + row // GROUP).to(tl.int64) * ot + query_head * oh)[:, None] + channel
    tl.store(to, rounded(result, out.dtype.element_ty), valid[:, None] & (channel < SIZE)[None, :])


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def split_kv(
    q, k, v, table, seq_lens, starts, out, sinks, slopes, partial, stats, tickets,
    scale, requests, qt, qh, kb, ks, kh, vb, vs, vh, tb, ot, oh, merge, least,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    QUERIES: tl.constexpr, M_TILES: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
    AT_ONCE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr, ALIBI: tl.constexpr, CAUSAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program of (programs,). Strides are of query token and head, or block, slot and head.

    QUERIES: query tokens of a request that is served here, at most. M_TILES: tiles of BLOCK_M rows
    that its queries and GROUP heads fill; ROWS: of a tile, those that are ever used. BLOCK_B:
    requests looked at in one go.
    least: tiles that a program takes at least. merge: pieces that one program adds up; AT_ONCE: of
    those, how many it reads at once. WINDOW, CAP: 0 for none.
    EARLY: whether it may be launched before the launch before it has ended.
    """
    await_previous(EARLY)
    qt, qh, ot, oh = aligned(qt), aligned(qh), aligned(ot), aligned(oh)
    kb, ks, kh = aligned(kb), aligned(ks), aligned(kh)
    vb, vs, vh = aligned(vb), aligned(vs), aligned(vh)
    program, programs = tl.program_id(0), tl.num_programs(0)
    HEADS: tl.constexpr = KV_HEADS * M_TILES
    # How much there is to do, in tiles, and which piece of it is this program's.
    all_tiles = 0
    for base in range(0, requests, BLOCK_B):
        first, behind = key_tiles(
            requests, seq_lens, starts, base + tl.arange(0, BLOCK_B), BLOCK_N, WINDOW, QUERIES
        )
        all_tiles += tl.sum(behind - first, 0)
    each = tl.maximum(tl.cdiv(all_tiles * HEADS, programs), least)
    tile = program * each
    end = tl.minimum(tile + each, all_tiles * HEADS)
    row, channel = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    request, before = 0, 0  # the request looked at, and the tiles before it
    while tile < end:
        # The request of this tile: as many as end at or before it stand before it.
        searching = tile < end
        while searching:
            first, behind = key_tiles(
                requests,
                seq_lens,
                starts,
                request + tl.arange(0, BLOCK_B),
                BLOCK_N,
                WINDOW,
                QUERIES,
            )
            ends = before + tl.cumsum(behind - first, 0) * HEADS
            passed = ends <= tile
            skipped = tl.sum(passed.to(tl.int32), 0)
            before = tl.maximum(before, tl.max(tl.where(passed, ends, 0), 0))
            request += skipped
            searching = skipped == BLOCK_B
        first, behind = key_tiles(requests, seq_lens, starts, request, BLOCK_N, WINDOW, QUERIES)
        tiles = behind - first
        head_and_m = (tile - before) // tiles
        head, m_tile = head_and_m // M_TILES, head_and_m % M_TILES
        head_begins = before + head_and_m * tiles
        begins = tile - head_begins
        ends_at = tl.minimum(tiles, begins + end - tile)

        length = tl.load(seq_lens + request)
        begin = tl.load(starts + request)
        queries = tl.load(starts + request + 1) - begin
        here = m_tile * BLOCK_M + row
        valid = here < queries * GROUP
        query_head = head * GROUP + here % GROUP
        rows = q + ((begin + here // GROUP).to(tl.int64) * qt + query_head * qh)[:, None]
        used = channel < SIZE
        query = tl.load(rows + channel[None, :], valid[:, None] & used[None, :], 0.0)
        at = length - queries + here // GROUP  # the query tokens' positions
        slope = 0.0
        if ALIBI:
            slope = tl.load(slopes + query_head, valid, 0.0)[:, None]
        most = tl.full([BLOCK_M], LOWEST, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        keys, values = k + head * kh + channel[None, :], v + head * vh + channel[None, :]
        own_table = table + request.to(tl.int64) * tb
        position = (first + begins) * BLOCK_N + tl.arange(0, BLOCK_N)
        oldest = 0  # what a window left behind may be anything
        if WINDOW > 0:
            oldest = tl.maximum(length - queries - WINDOW + 1, 0)
        seen = (position >= oldest) & (position < length)
        next_block = blocks(own_table, position, seen, SLOTS)
        for _ in range(begins, ends_at):
            # A tile's blocks are looked up a tile earlier, so that they are not waited for.
            block, slot, inside = next_block.to(tl.int64), position % SLOTS, seen
            seen = position + BLOCK_N < length
            next_block = blocks(own_table, position + BLOCK_N, seen, SLOTS)
            some = inside[:, None] & used[None, :]
            key = tl.load(keys + (block * kb + slot * ks)[:, None], some, 0.0)
            value = tl.load(values + (block * vb + slot * vs)[:, None], some, 0.0)
            ahead = position[None, :] - at[:, None]
            scores = bent(product(query, key), scale, slope, ahead, CAP, ALIBI)
            visible = inside[None, :]
            if CAUSAL and QUERIES > 1:
                visible = visible & (ahead <= 0)
            if WINDOW > 0:
                visible = visible & (ahead > -WINDOW)
            scores = tl.where(visible, scores, -float("inf"))
            now = tl.maximum(most, tl.max(scores, 1))
            weights, kept = tl.exp2(scores - now[:, None]), tl.exp2(most - now)
            total = total * kept + tl.sum(weights, 1)
            weights = rounded(weights, value.dtype)
            acc = add_product(acc * kept[:, None], weights, value.T)
            most = now
            position += BLOCK_N

        tile += ends_at - begins
        if (ends_at - begins) == tiles:
            finish(
                out, sinks, acc, most, total, here, begin, queries * GROUP, head, ot, oh,
                GROUP, SIZE, BLOCK_D, SINKS,
            )  # fmt: skip
        else:
            first_program = head_begins // each
            shifted = (head_begins % each > 0).to(tl.int32)
            index = program - first_program
            count = (head_begins + tiles - 1) // each - first_program + 1
            put_down(
                partial, stats, piece(first_program, index, shifted), acc, most, total, row,
                ROWS, BLOCK_D,
            )  # fmt: skip
            stride, level, going = tl.minimum(count, 1), count * 0, count > 1
            while going:
                final = count <= merge
                lead = tl.where(final, 0, index // merge * merge)
                some = tl.minimum(count - lead, merge)
                leader = piece(first_program, lead * stride, shifted)
                going = arrive(tickets + level * (2 * programs) + leader, some)
                if going:
                    sum_, most_, total_ = add_up(
                        partial, stats, first_program, shifted, lead, some, stride, ROWS, BLOCK_D,
                        AT_ONCE,
                    )  # fmt: skip
                    few = tl.arange(0, ROWS)
                    going = count > merge
                    if final:
                        finish(
                            out, sinks, sum_, most_, total_, m_tile * BLOCK_M + few, begin,
                            queries * GROUP, head, ot, oh, GROUP, SIZE, BLOCK_D, SINKS,
                        )  # fmt: skip
                    else:
                        tl.debug_barrier()  # all threads have read the leader's piece
                        put_down(partial, stats, leader, sum_, most_, total_, few, ROWS, BLOCK_D)
                        index, count = index // merge, tl.cdiv(count, merge)
                        stride, level = stride * merge, level + 1
