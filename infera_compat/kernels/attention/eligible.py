"""Which layers our Triton kernels of attention take, and what they run on."""

from __future__ import annotations

import functools
from typing import Protocol

import torch

from infera_compat.kernels.arithmetic import INTERPRETED
from infera_compat.kernels.attention.arguments import DTYPES, ROW
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.kernel import Reason

MOST_CHANNELS = 256
OLDEST = (8, 0)
"""The first NVIDIA GPU that multiplies bfloat16 matrices."""
INTERPRETED_PROCESSORS, ASSUMED_PROCESSORS = 4, 132
"""What a layer on no GPU is cut for: in the interpreter, and where it is only compiled (H200)."""


class Layer(Protocol):
    """A spec of an op that reads a cache."""

    @property
    def device(self) -> str:
        """As AttentionSpec's."""

    @property
    def capability(self) -> tuple[int, int] | None:
        """As AttentionSpec's."""

    @property
    def dtype(self) -> torch.dtype:
        """Of query and out."""

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of the cache."""


def unfit(spec: Layer) -> Reason | None:
    """Why a layer's device or its element types are none for them, or None."""
    if spec.device != "cuda" and not INTERPRETED.value:
        return Reason(f"a layer on {spec.device}", "a GPU, or Triton's interpreter")
    if spec.capability is not None and spec.capability < OLDEST:
        return Reason(
            f"a GPU of compute capability {spec.capability[0]}.{spec.capability[1]}",
            f"{OLDEST[0]}.{OLDEST[1]} at least",
        )
    if spec.dtype not in DTYPES or spec.kv_dtype != spec.dtype:
        return Reason(
            f"{spec.dtype} over a cache of {spec.kv_dtype}",
            "bfloat16 or float16, the same for both",
        )
    return None


def refusal(spec: AttentionSpec) -> Reason | None:
    """Why a layer is none for them, or None."""
    reason = unfit(spec)
    if reason is not None:
        return reason
    if spec.head_size % ROW or spec.head_size > MOST_CHANNELS:
        return Reason(
            f"heads of {spec.head_size} channels",
            f"a multiple of {ROW}, {MOST_CHANNELS} at most",
        )
    if spec.heads % spec.kv_heads:
        return Reason(
            f"{spec.heads} heads over {spec.kv_heads} KV heads",
            "as many query heads for each KV head",
        )
    if spec.window is not None and not spec.causal:
        return Reason("a window without causality", "one or the other")
    return None


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU (compute units on AMD's)."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS if INTERPRETED.value else ASSUMED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
