"""What our Triton kernels of attention are called with: the same for each of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from itertools import product
from operator import or_
from typing import Any

import torch

from infera_compat.kernels.attention.contract import AttentionCall, AttentionSpec
from infera_compat.kernels.pieces import power

DTYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16"}
"""Element types that they take, and pointers to them as Triton writes them."""
POINTERS = {
    **dict.fromkeys(("table", "seq_lens", "starts"), "*i32"),
    **dict.fromkeys(("slopes", "partial", "stats", "sinks", "lse"), "*fp32"),
}
FEATURES: Mapping[str, Any] = {"window": 128, "soft_cap": 30.0, "sinks": True, "alibi": True}
ROW = 8
"""Elements of 16 bytes: what rows are multiples of."""
FEWEST_CHANNELS = 16
"""Of a tile: what a tensor core takes at least."""


def channels(spec: AttentionSpec) -> int:
    """Channels of a tile: a power of two."""
    return max(FEWEST_CHANNELS, power(spec.head_size))


def constants(spec: AttentionSpec) -> dict[str, Any]:
    """A layer's own, by the kernels' parameters. 0 is no window, and no soft cap."""
    return {
        "KV_HEADS": spec.kv_heads,
        "GROUP": spec.heads // spec.kv_heads,
        "SIZE": spec.head_size,
        "SLOTS": spec.block_size,
        "WINDOW": spec.window or 0,
        "CAP": spec.soft_cap or 0.0,
        "SINKS": spec.sinks,
        "ALIBI": spec.alibi,
        "CAUSAL": spec.causal,
    }


def tensors(call: AttentionCall, none: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors of a call, in the order of the parameters. none: stands for one that is not."""
    return (
        call.query,
        call.key_cache,
        call.value_cache,
        call.block_table,
        call.seq_lens,
        call.query_start_loc,
        call.out,
        none if call.sinks is None else call.sinks,
        none if call.alibi_slopes is None else call.alibi_slopes,
    )


def strides(call: AttentionCall) -> tuple[int, ...]:
    """Their strides in elements, in that order; each row's channels lie side by side.

    ValueError: rows that do not begin at multiples of 16 bytes, which the contract promises and
    the kernels rely on.
    """
    found = (
        *call.query.stride()[:2],
        *call.key_cache.stride()[:3],
        *call.value_cache.stride()[:3],
        call.block_table.stride(0),
        *call.out.stride()[:2],
    )
    *rows, _, first, second = found
    if functools.reduce(or_, rows, first | second) % ROW:
        raise ValueError(f"rows by strides of {found} elements, expected multiples of {ROW}")
    return found


def signature(function: Any, dtype: torch.dtype, constants: Mapping[str, Any]) -> dict[str, str]:
    """The types of a kernel's parameters, for a compilation without a call."""
    known = {"scale": "fp32", **dict.fromkeys(constants, "constexpr"), **POINTERS}
    known |= dict.fromkeys(("q", "k", "v", "cache", "out"), DTYPES[dtype])
    return {name: known.get(name, "i32") for name in function.arg_names}


def examples() -> Iterator[AttentionSpec]:
    """Layers to compile for without a GPU: each element type, plain and with every feature."""
    for dtype, extra in product(DTYPES, ({}, FEATURES)):
        # On no device: what was tuned for the GPU that is here, or that isn't, is not asked for.
        yield AttentionSpec(32, 8, 128, dtype, dtype, block_size=16, device="cpu", **extra)
