"""Prefill: tiles of query tokens, each over all keys that it sees, gathered across pages.

All heads that read a KV head stand in one tile, so a key that was gathered serves them all. What
every query of a tile sees is gone through without a mask; only the last keys need one. Tiles that
see most come first, so that the short ones fill the end.

After FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, product, rounded
from infera_compat.kernels.attention.paged import LOG2E, aligned, bent, blocks, with_sinks
from infera_compat.kernels.piecewise import LOWEST

NUMBERS = (
    *("requests", "qt", "qh", "kb", "ks", "kh", "vb", "vs", "vh", "tb", "ot", "oh"),
    "scale",
)
"""Arguments whose values Triton is not to compile for."""
WHOLE_NUMBERS = ("table", "seq_lens", "starts", "sinks", "slopes")
"""Pointers that are read a number at a time: their alignment does not matter."""


@triton.jit
def query_tiles(requests, starts, at, FEWEST: tl.constexpr, TOKENS: tl.constexpr):
    """Tiles of TOKENS query tokens of requests; 0 for those with fewer than FEWEST."""
    there = at < requests
    queries = tl.load(starts + at + 1, there, 0) - tl.load(starts + at, there, 0)
    return tl.where(queries >= FEWEST, tl.cdiv(queries, TOKENS), 0)


@triton.jit
def over_keys(
    acc, most, total, query, keys, values, table, at, slope, oldest, length, scale, begin, end,
    kb, ks, vb, vs,
    SIZE: tl.constexpr, SLOTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, ALIBI: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Go through the tiles of keys [begin, end). Without MASKED each is seen by every query."""
    channel = tl.arange(0, BLOCK_D)
    position = begin * BLOCK_N + tl.arange(0, BLOCK_N)
    seen = (position >= oldest) & (position < length)
    next_block = blocks(table, position, seen, SLOTS)
    for _ in range(begin, end):
        # A tile's blocks are looked up a tile earlier, so that they are not waited for.
        block, slot, inside = next_block.to(tl.int64), position % SLOTS, seen
        seen = position + BLOCK_N < length
        next_block = blocks(table, position + BLOCK_N, seen, SLOTS)
        to_key, to_value = (block * kb + slot * ks)[:, None], (block * vb + slot * vs)[:, None]
        if MASKED or WINDOW > 0 or SIZE < BLOCK_D:
            some = inside[:, None] & (channel < SIZE)[None, :]
            key = tl.load(keys + to_key, some, 0.0)
            value = tl.load(values + to_value, some, 0.0)
        else:
            key, value = tl.load(keys + to_key), tl.load(values + to_value)
        products = product(query, key)
        if MASKED or WINDOW > 0:
            ahead = position[None, :] - at[:, None]
            visible = inside[None, :]
            if CAUSAL:
                visible = visible & (ahead <= 0)
            if WINDOW > 0:
                visible = visible & (ahead > -WINDOW)
        if CAP > 0 or ALIBI:
            ahead = position[None, :] - at[:, None]
            products = bent(products, scale, slope, ahead, CAP, ALIBI)
            factor = 1.0
        else:
            factor = scale * LOG2E
        if MASKED or WINDOW > 0:
            products = tl.where(visible, products, -float("inf"))
        # The scale is positive: the largest product has the largest score.
        now = tl.maximum(most, tl.max(products, 1) * factor)
        weights, kept = tl.exp2(products * factor - now[:, None]), tl.exp2(most - now)
        total = total * kept + tl.sum(weights, 1)
        weights = rounded(weights, value.dtype)
        acc = add_product(acc * kept[:, None], weights, value.T)
        most = now
        position += BLOCK_N
    return acc, most, total


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def prefill(
    q, k, v, table, seq_lens, starts, out, sinks, slopes,
    scale, requests, qt, qh, kb, ks, kh, vb, vs, vh, tb, ot, oh,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SLOTS: tl.constexpr,
    FEWEST: tl.constexpr, TOKENS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr, ALIBI: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program of (tiles * KV_HEADS,); those past the last tile have nothing to do.

    Strides are of query token and head, or block, slot and head. FEWEST: query tokens of a request
    that is served here. TOKENS: of a tile of BLOCK_M rows. BLOCK_B: requests looked at in one go.
    WINDOW, CAP: 0 for none.
    """
    qt, qh, ot, oh = aligned(qt), aligned(qh), aligned(ot), aligned(oh)
    kb, ks, kh = aligned(kb), aligned(ks), aligned(kh)
    vb, vs, vh = aligned(vb), aligned(vs), aligned(vh)
    tile, head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    request, before = 0, 0
    searching = requests > 0
    while searching:
        ends = before + tl.cumsum(
            query_tiles(requests, starts, request + tl.arange(0, BLOCK_B), FEWEST, TOKENS), 0
        )
        passed = ends <= tile
        skipped = tl.sum(passed.to(tl.int32), 0)
        before = tl.maximum(before, tl.max(tl.where(passed, ends, 0), 0))
        request += skipped
        searching = (skipped == BLOCK_B) & (request < requests)
    if request < requests:
        begin, length = tl.load(starts + request), tl.load(seq_lens + request)
        queries = tl.load(starts + request + 1) - begin
        tiles = tl.cdiv(queries, TOKENS)
        token = (tiles - 1 - (tile - before)) * TOKENS
        row, channel = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        own, query_head = token + row // GROUP, head * GROUP + row % GROUP
        valid = (row < TOKENS * GROUP) & (own < queries)
        used = valid[:, None] & (channel < SIZE)[None, :]
        to_query = ((begin + own).to(tl.int64) * qt + query_head * qh)[:, None] + channel[None, :]
        query = tl.load(q + to_query, used, 0.0)
        at = length - queries + own
        slope = 0.0
        if ALIBI:
            slope = tl.load(slopes + query_head, valid, 0.0)[:, None]
        earliest = length - queries + token
        latest = tl.minimum(earliest + TOKENS, length) - 1
        oldest = 0  # what a window left behind may be anything
        if WINDOW > 0:
            oldest = tl.maximum(earliest - WINDOW + 1, 0)
        first = oldest // BLOCK_N
        if CAUSAL:
            clear, behind = (earliest + 1) // BLOCK_N, latest // BLOCK_N + 1
        else:
            clear, behind = length // BLOCK_N, tl.cdiv(length, BLOCK_N)
        clear = tl.maximum(clear, first)
        most = tl.full([BLOCK_M], LOWEST, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        keys, values = k + head * kh + channel[None, :], v + head * vh + channel[None, :]
        own_table = table + request.to(tl.int64) * tb
        acc, most, total = over_keys(
            acc, most, total, query, keys, values, own_table, at, slope, oldest, length,
            scale, first, clear, kb, ks, vb, vs,
            SIZE, SLOTS, BLOCK_N, BLOCK_D, False, WINDOW, CAP, ALIBI, CAUSAL,
        )  # fmt: skip
        acc, most, total = over_keys(
            acc, most, total, query, keys, values, own_table, at, slope, oldest, length,
            scale, clear, behind, kb, ks, vb, vs,
            SIZE, SLOTS, BLOCK_N, BLOCK_D, True, WINDOW, CAP, ALIBI, CAUSAL,
        )  # fmt: skip
        if SINKS:
            acc, total = with_sinks(acc, most, total, sinks, query_head, valid)
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        to_out = ((begin + own).to(tl.int64) * ot + query_head * oh)[:, None] + channel[None, :]
        tl.store(out + to_out, rounded(result, out.dtype.element_ty), used)
