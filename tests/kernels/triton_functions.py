"""Functions of Triton for the tests: one that compiles, and some that don't."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def double(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) * 2, at < n)


@triton.jit
def undefined(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x, not_there)  # noqa: F821


@triton.jit
def too_large(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.static_assert(BLOCK < 64)
    tl.store(x, n)
