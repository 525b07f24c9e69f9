"""Launches that follow each other closer than usual, on GPUs that can (NVIDIA's from sm_90 on).

A launch that was told so may begin when all programs of the one before it have begun, and waits for
its end where it first needs what that wrote. Each of our launches waits, so what came before the
one before has ended too.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def release_next(EARLY: tl.constexpr):
    """Let the next launch begin."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def await_previous(EARLY: tl.constexpr):
    """Wait until the launch before has ended and what it wrote can be read."""
    if EARLY:
        gdc_wait()
