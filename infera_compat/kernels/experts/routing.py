"""Which local expert a pair of a token and a choice goes to."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def local_expert(ids, expert_map, pair, used, words, MAPPED: tl.constexpr):
    """The local expert of each pair, int32; -1 where it has none, and where not `used`.

    ids: int32. words: how many of them an id takes: 2 for int64, whose lower half comes first and
    is -1 for -1. expert_map: read where MAPPED, and only for an id that is one.
    """
    expert = tl.load(ids + pair * words, used, -1)
    if MAPPED:
        expert = tl.load(expert_map + expert, used & (expert >= 0), -1)
    return expert
