"""Decoding: the keys of a step in pieces of about the same length, and a launch that adds them up.

How they are cut is piecewise's. Where there are as many requests as pieces, each request is one
piece, and nothing has to be added up.

After the ideas of Flash-Decoding (Dao et al., 2023) and Lean Attention (Sanovar et al., 2024).
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, product, rounded
from infera_compat.kernels.attention.paged import (
    aligned,
    bent,
    blocks,
    key_tiles,
    with_sinks,
)
from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.piecewise import LOWEST, added, cut, keep, of_request, own

NUMBERS = (
    *("requests", "qt", "qh", "kb", "ks", "kh", "vb", "vs", "vh", "tb", "ot", "oh"),
    *("scale", "wanted", "least"),
)
"""Arguments whose values Triton is not to compile for."""
WHOLE_NUMBERS = ("table", "seq_lens", "starts", "sinks", "slopes")
"""Pointers that are read a number at a time: their alignment does not matter."""


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def split_kv(
    q, k, v, table, seq_lens, starts, out, sinks, slopes, partial, stats,
    scale, requests, qt, qh, kb, ks, kh, vb, vs, vh, tb, ot, oh, wanted, least,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    QUERIES: tl.constexpr, M_TILES: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, ALIBI: tl.constexpr,
    CAUSAL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program of (pieces, KV_HEADS * M_TILES). Strides are of query token and head, or block,
    slot and head.

    QUERIES: query tokens of a request that is served here, at most. M_TILES: tiles of BLOCK_M rows
    that its queries and GROUP heads fill; ROWS: of a tile, those that are ever used. BLOCK_B: at
    least as many as there are requests; 0 where each request is a piece, and `out` is written.
    wanted, least: of `cut`. WINDOW, CAP: 0 for none. EARLY: whether it may be launched before
    the launch before it has ended.
    partial, stats: of `keep`; places are [pieces, KV_HEADS * M_TILES].
    """
    await_previous(EARLY)
    # Behind the wait: who is released may read the step's lengths at once.
    release_next(EARLY)
    qt, qh, ot, oh = aligned(qt), aligned(qh), aligned(ot), aligned(oh)
    kb, ks, kh = aligned(kb), aligned(ks), aligned(kh)
    vb, vs, vh = aligned(vb), aligned(vs), aligned(vh)
    unit, head, m_tile = tl.program_id(0), tl.program_id(1) // M_TILES, tl.program_id(1) % M_TILES
    if BLOCK_B == 0:
        request = unit
        first, behind = key_tiles(requests, seq_lens, starts, request, BLOCK_N, WINDOW, QUERIES)
        begins, ends = first, behind
    else:
        every = tl.arange(0, BLOCK_B)
        first, behind = key_tiles(requests, seq_lens, starts, every, BLOCK_N, WINDOW, QUERIES)
        each, count = cut(behind - first, wanted, least)
        request, before = own(count, unit)
        first, behind = key_tiles(requests, seq_lens, starts, request, BLOCK_N, WINDOW, QUERIES)
        begins = first + (unit - before) * each
        ends = tl.minimum(begins + each, behind)
    if begins < ends:
        length = tl.load(seq_lens + request)
        begin = tl.load(starts + request)
        queries = tl.load(starts + request + 1) - begin
        row, channel = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
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
        position = begins * BLOCK_N + tl.arange(0, BLOCK_N)
        oldest = 0  # what a window left behind may be anything
        if WINDOW > 0:
            oldest = tl.maximum(length - queries - WINDOW + 1, 0)
        seen = (position >= oldest) & (position < length)
        next_block = blocks(own_table, position, seen, SLOTS)
        for _ in range(begins, ends):
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
        if BLOCK_B == 0:
            if SINKS:
                acc, total = with_sinks(acc, most, total, sinks, query_head, valid)
            result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
            to = out + ((begin + here // GROUP).to(tl.int64) * ot + query_head * oh)[:, None]
            result = rounded(result, out.dtype.element_ty)
            tl.store(to + channel[None, :], result, valid[:, None] & used[None, :])
        else:
            place = unit * (KV_HEADS * M_TILES) + tl.program_id(1)
            keep(partial, stats, place, row, channel, acc, most, total, ROWS, BLOCK_D)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def add_pieces(
    seq_lens, starts, out, sinks, partial, stats, requests, ot, oh, wanted, least,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    QUERIES: tl.constexpr, M_TILES: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr, AT_ONCE: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program of (requests * KV_HEADS, QUERIES * GROUP): a row of out, from its pieces.

    AT_ONCE: pieces that are read at once. The rest is as in split_kv, which wrote them.
    """
    ot, oh = aligned(ot), aligned(oh)
    request, head, row = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS, tl.program_id(1)
    every = tl.arange(0, BLOCK_B)
    first, behind = key_tiles(requests, seq_lens, starts, every, BLOCK_N, WINDOW, QUERIES)
    _, count = cut(behind - first, wanted, least)
    before, some = of_request(count, request, BLOCK_B)
    begin = tl.load(starts + request)
    queries = tl.load(starts + request + 1) - begin
    await_previous(EARLY)
    if (some > 0) & (row < queries * GROUP):
        channel = tl.arange(0, BLOCK_D)
        query_head = head * GROUP + row % GROUP
        place = before * (KV_HEADS * M_TILES) + head * M_TILES + row // BLOCK_M
        acc, most, total = added(
            partial, stats, place, some, KV_HEADS * M_TILES, row % BLOCK_M, channel,
            ROWS, BLOCK_D, AT_ONCE,
        )  # fmt: skip
        if SINKS:
            of = query_head + tl.zeros([1], tl.int32)
            acc, total = with_sinks(acc, most, total, sinks, of, of >= 0)
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        to = out + (begin + row // GROUP).to(tl.int64) * ot + query_head * oh
        result = rounded(result, out.dtype.element_ty)
        tl.store(to + channel[None, :], result, (channel < SIZE)[None, :])
