"""Which fields of stock's attention metadata an adapter understands: all others must be unset.

A release that adds a field may mean something by it that a kernel would ignore. So where a field
is set that stands in no list here, the step is stock's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

READ = frozenset(
    (
        "num_actual_tokens",
        "max_query_len",
        "query_start_loc",
        "max_seq_len",
        "seq_lens",
        "block_table",
        "slot_mapping",
        "causal",
    )
)
"""The same names and meanings in every backend below and every release (`causal` is missing where
a backend always is)."""

# How stock's own kernel is to be launched, or counts that follow from what is read.
LAUNCH = ("scheduler_metadata", "prefix_scheduler_metadata", "max_num_splits")
COUNTS = ("num_decode_reqs", "num_prefill_reqs", "num_decode_tokens", "num_prefill_tokens")
SEGMENTS = (
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
)


@dataclass(frozen=True)
class Known:
    """A metadata class that is understood.

    ignored: fields that say nothing of the result. same_as: fields that may be set, where they say
    what the layer says: field → attribute of the layer's impl.
    first, last: the minor releases that have it, as read in their source. upstream: where.
    """

    ignored: frozenset[str]
    same_as: Mapping[str, str]
    first: str
    last: str
    upstream: str


BACKENDS = "vllm.v1.attention.backends"
KNOWN: Mapping[str, Known] = {
    "FLASH_ATTN": Known(
        frozenset((*LAUNCH, *COUNTS)),
        # 0.25.1 to 0.27.1: what the metadata says of the window wins over the layer.
        {"sliding_window": "sliding_window"},
        "0.22",
        "0.33",
        f"{BACKENDS}.flash_attn:FlashAttentionMetadata",
    ),
    "TRITON_ATTN": Known(
        frozenset((*LAUNCH, *SEGMENTS)),
        {},
        "0.22",
        "0.33",
        f"{BACKENDS}.triton_attn:TritonAttentionMetadata",
    ),
    "ROCM_AITER_UNIFIED_ATTN": Known(
        frozenset(LAUNCH), {}, "0.22", "0.33", f"{BACKENDS}.rocm_attn:RocmAttentionMetadata"
    ),
    "CPU_ATTN": Known(
        frozenset((*LAUNCH, "num_decode_tokens")),
        {},
        "0.24",
        "0.33",
        f"{BACKENDS}.cpu_attn:CPUAttentionMetadata",
    ),
}
"""By backend (regimes.name_of)."""

MLA_READ = frozenset(("block_table", "seq_lens"))
MLA_IGNORED = frozenset((*LAUNCH, "query_start_loc", "max_query_len", "max_seq_len"))
"""Of the decode part of MLA's metadata, in every backend (v1/attention/backends/mla)."""


def stray(metadata: Any, backend: str, impl: Any) -> str | None:
    """The first field that is set and not understood, or None: the metadata is plain attention."""
    known = KNOWN[backend]
    for name in _others(_class(metadata), READ | known.ignored):
        value = vars(metadata)[name]
        if not _set(value):
            continue
        if name in known.same_as and value == getattr(impl, known.same_as[name]):
            continue
        return name
    return None


def stray_mla(decode: Any) -> str | None:
    """The same for the decode part of MLA's metadata."""
    others = _others(_class(decode), MLA_READ | MLA_IGNORED)
    return next((name for name in others if _set(vars(decode)[name])), None)


def causal(metadata: Any) -> bool:
    """Whether a step is causal: always, where the backend has no word for it."""
    return "causal" not in vars(metadata) or vars(metadata)["causal"] is True


def _class(metadata: Any) -> Any:
    return type(metadata)


def _set(value: Any) -> bool:
    return value is not None and value is not False and not (value == 0 and type(value) is int)


@cache
def _others(cls: Any, known: frozenset[str]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.name not in known)
