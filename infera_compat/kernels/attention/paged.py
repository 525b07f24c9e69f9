"""What the Triton kernels of attention share: where keys lie, and how scores are bent.

All of it is inlined into a kernel. Lengths are read on the device, sizes of a layer are constants.
"""

from __future__ import annotations

# mypy: ignore-errors
# Triton's language has Python's grammar and not its types.
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
ALIGNED = tl.constexpr(8)
"""Strides of rows are multiples of so many elements: 16 bytes, as the contract says."""


@triton.jit
def aligned(stride):
    """A stride of rows, known to be a multiple of 16 bytes: then loads are wide."""
    return stride // ALIGNED * ALIGNED


@triton.jit
def key_tiles(
    requests, seq_lens, starts, at, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr, MOST: tl.constexpr
):
    """Tiles of BLOCK_N keys that requests attend to: those from the first to behind the last.

    at: any shape, int32, indexes of requests; those past `requests` have no tile.
    Returns (first, behind), tiles counted from the request's first token; both 0 where a request
    has no query token, or more than MOST.
    """
    there = at < requests
    length = tl.load(seq_lens + at, there, 0)
    queries = tl.load(starts + at + 1, there, 0) - tl.load(starts + at, there, 0)
    behind = tl.where((queries > 0) & (queries <= MOST), tl.cdiv(length, BLOCK_N), 0)
    first = behind * 0
    if WINDOW > 0:
        seen = tl.maximum(length - queries - WINDOW + 1, 0)
        first = tl.minimum(seen // BLOCK_N, behind)
    return first, behind


@triton.jit
def blocks(table, position, seen, SLOTS: tl.constexpr):
    """The blocks of tokens at these positions of a request, int32; 0 for those that none sees."""
    return tl.load(table + position // SLOTS, seen, 0)


@triton.jit
def bent(
    products,
    scale,
    slope,
    ahead,
    CAP: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """Scores in units of log2 from products of query and key.

    slope: [rows, 1]. ahead: [rows, keys], key position less query position; both for ALiBi alone.
    tanh by one exp2: 1 - 2 / (e**2x + 1), which is right at both infinities.
    """
    if CAP > 0:
        half = tl.exp2(products * (scale * (2 * LOG2E / CAP))) + 1.0
        scores = CAP * (1.0 - 2.0 / half)
        if ALIBI:
            scores += slope * ahead
        return scores * LOG2E
    if ALIBI:
        return (products * scale + slope * ahead) * LOG2E
    return products * (scale * LOG2E)


@triton.jit
def with_sinks(acc, most, total, sinks, head, valid):
    """A learned logit a head in the denominator. head: [rows], of each row."""
    sink = tl.load(sinks + head, valid, 0).to(tl.float32) * LOG2E
    now = tl.maximum(most, sink)
    kept = tl.exp2(most - now)
    return acc * kept[:, None], total * kept + tl.exp2(sink - now)
