"""Decoding over a latent cache: all heads read the same key, whose first channels are the value.

A tile of the cache is read once and multiplied twice. How a step is cut, and what adds pieces up,
are piecewise's.
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

from infera_compat.kernels.arithmetic import add_product, product, rounded
from infera_compat.kernels.attention.paged import LOG2E, aligned, blocks
from infera_compat.kernels.dependents import await_previous, release_next
from infera_compat.kernels.piecewise import LOWEST, added, cut, keep, of_request, own

NUMBERS = (
    *("requests", "queries", "qt", "qh", "cb", "cs", "tb", "ot", "oh", "lt", "lh"),
    *("scale", "wanted", "least"),
)
"""Arguments whose values Triton is not to compile for."""
WHOLE_NUMBERS = ("table", "seq_lens", "lse")
"""Pointers that are read or written a number at a time: their alignment does not matter."""


@triton.jit
def latent_tiles(requests, seq_lens, at, BLOCK_N: tl.constexpr):
    """Tiles of BLOCK_N tokens of requests; those past `requests` have none. at: any shape."""
    return tl.cdiv(tl.load(seq_lens + at, at < requests, 0), BLOCK_N)


@triton.jit
def finish(
    out, lse, acc, most, total, token, head, channel, valid, ot, oh, lt, lh,
    LATENT: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Write rows of out and lse: zeros and -inf where a row saw no token. token, head: [rows]."""
    some = total > 0.0
    result = rounded(acc / tl.where(some, total, 1.0)[:, None], out.dtype.element_ty)
    to = out + (token.to(tl.int64) * ot + head * oh)[:, None] + channel[None, :]
    tl.store(to, result, valid[:, None] & (channel < LATENT)[None, :])
    if LSE:
        logs = (most + tl.log2(tl.where(some, total, 1.0))) / LOG2E
        logs = tl.where(some, logs, -float("inf"))
        tl.store(lse + token.to(tl.int64) * lt + head * lh, logs, valid)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def split_latent(
    q, cache, table, seq_lens, out, lse, partial, stats,
    scale, requests, queries, qt, qh, cb, cs, tb, ot, oh, lt, lh, wanted, least,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, SLOTS: tl.constexpr,
    SEVERAL: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_B: tl.constexpr,
    LSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program of (pieces, tiles of BLOCK_M rows). Strides are of query token and head, or of
    block and slot.

    queries: query tokens of each request; SEVERAL: whether they may be more than one. ROWS: of a
    tile, those that are ever used. BLOCK_L, BLOCK_R: at least LATENT and ROPE channels. BLOCK_B:
    at least as many as there are requests; 0 where each request is a piece, and `out` is written.
    wanted, least: of `cut`. LSE: whether `lse` is written. EARLY: whether it may be launched before
    the launch before it has ended.
    partial, stats: of `keep`; places are [pieces, tiles of rows].
    """
    await_previous(EARLY)
    # Behind the wait: who is released may read the step's lengths at once.
    release_next(EARLY)
    qt, qh, ot, oh, cb, cs = (
        aligned(qt), aligned(qh), aligned(ot), aligned(oh), aligned(cb), aligned(cs)
    )  # fmt: skip
    unit, m_tile = tl.program_id(0), tl.program_id(1)
    if BLOCK_B == 0:
        request = unit
        begins, ends = 0, latent_tiles(requests, seq_lens, request, BLOCK_N)
        busy = begins <= ends  # a request of no token gets zeros
    else:
        each, count = cut(
            latent_tiles(requests, seq_lens, tl.arange(0, BLOCK_B), BLOCK_N), wanted, least
        )
        request, before = own(count, unit)
        begins = (unit - before) * each
        ends = tl.minimum(begins + each, latent_tiles(requests, seq_lens, request, BLOCK_N))
        busy = begins < ends
    if busy:
        length = tl.load(seq_lens + request)
        row, channel = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_L)
        turned = tl.arange(0, BLOCK_R)
        here = m_tile * BLOCK_M + row
        valid = here < queries * HEADS
        token, head = request * queries + here // HEADS, here % HEADS
        rows = q + (token.to(tl.int64) * qt + head * qh)[:, None]
        query = tl.load(rows + channel[None, :], valid[:, None] & (channel < LATENT)[None, :], 0.0)
        query_turned = tl.load(
            rows + LATENT + turned[None, :], valid[:, None] & (turned < ROPE)[None, :], 0.0
        )
        at = length - queries + here // HEADS  # the query tokens' positions
        most = tl.full([BLOCK_M], LOWEST, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_L], tl.float32)
        own_table = table + request.to(tl.int64) * tb
        position = begins * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = position < length
        next_block = blocks(own_table, position, seen, SLOTS)
        for _ in range(begins, ends):
            # A tile's blocks are looked up a tile earlier, so that they are not waited for.
            block, slot, inside = next_block.to(tl.int64), position % SLOTS, seen
            seen = position + BLOCK_N < length
            next_block = blocks(own_table, position + BLOCK_N, seen, SLOTS)
            slots = cache + (block * cb + slot * cs)[:, None]
            latent = tl.load(
                slots + channel[None, :], inside[:, None] & (channel < LATENT)[None, :], 0.0
            )
            key_turned = tl.load(
                slots + LATENT + turned[None, :], inside[:, None] & (turned < ROPE)[None, :], 0.0
            )
            products = add_product(product(query_turned, key_turned), query, latent)
            visible = inside[None, :]
            if SEVERAL:
                visible = visible & (position[None, :] <= at[:, None])
            scores = tl.where(visible, products * (scale * LOG2E), -float("inf"))
            now = tl.maximum(most, tl.max(scores, 1))
            weights, kept = tl.exp2(scores - now[:, None]), tl.exp2(most - now)
            total = total * kept + tl.sum(weights, 1)
            weights = rounded(weights, latent.dtype)
            acc = add_product(acc * kept[:, None], weights, latent.T)
            most = now
            position += BLOCK_N
        if BLOCK_B == 0:
            finish(
                out, lse, acc, most, total, token, head, channel, valid, ot, oh, lt, lh,
                LATENT, LSE,
            )  # fmt: skip
        else:
            place = unit * tl.num_programs(1) + m_tile
            keep(partial, stats, place, row, channel, acc, most, total, ROWS, BLOCK_L)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=WHOLE_NUMBERS)
def add_latents(
    seq_lens, out, lse, partial, stats, requests, queries, m_tiles, ot, oh, lt, lh, wanted, least,
    HEADS: tl.constexpr, LATENT: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_B: tl.constexpr, AT_ONCE: tl.constexpr,
    LSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program of (requests, queries * HEADS): a row of out, from its pieces.

    m_tiles: tiles of rows of a request. AT_ONCE: pieces that are read at once. The rest is as in
    split_latent, which wrote them.
    """
    ot, oh = aligned(ot), aligned(oh)
    request, row = tl.program_id(0), tl.program_id(1)
    _, count = cut(latent_tiles(requests, seq_lens, tl.arange(0, BLOCK_B), BLOCK_N), wanted, least)
    before, some = of_request(count, request, BLOCK_B)
    await_previous(EARLY)
    channel = tl.arange(0, BLOCK_L)
    acc, most, total = added(
        partial, stats, before * m_tiles + row // BLOCK_M, some, m_tiles, row % BLOCK_M, channel,
        ROWS, BLOCK_L, AT_ONCE,
    )  # fmt: skip
    one = tl.zeros([1], tl.int32)
    finish(
        out, lse, acc, most, total, one + request * queries + row // HEADS, one + row % HEADS,
        channel, one == 0, ot, oh, lt, lh, LATENT, LSE,
    )  # fmt: skip
