"""A matrix product of two tiles, and rounding: both as a GPU does them, in the interpreter too."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

# Triton's interpreter multiplies bfloat16 as if it were an integer, and cuts it off.
INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def add_product(sums, left, right):
    """sums [m, n], float32, plus left [m, k] times the transpose of right [n, k]."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right.T, sums)


@triton.jit
def product(left, right):
    """left [m, k] times the transpose of right [n, k]: [m, n], float32."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right.T)


@triton.jit
def rounded(values, KIND: tl.constexpr):
    """float32 to the nearest of KIND, ties to even."""
    if INTERPRETED and tl.bfloat16 == KIND:
        bits = values.to(tl.int32, bitcast=True)
        values = (bits + 0x7FFF + ((bits >> 16) & 1)).to(tl.float32, bitcast=True)
    return values.to(KIND)
