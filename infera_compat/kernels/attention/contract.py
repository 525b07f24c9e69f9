"""Attention over a paged KV cache: prefill, chunked prefill and decode in one call.

Written for all layouts of the cache at once: a kernel takes strides, an adapter makes the views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from infera_compat.kernels.kernel import ATTENTION, Kernel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AttentionSpec:
    """What is known of a layer before it runs.

    heads, kv_heads: query heads and KV heads of this rank; heads is a multiple of kv_heads, and
        query head h reads KV head h // (heads // kv_heads).
    head_size: channels of a head, the same for keys and values.
    dtype: element type of query and out. kv_dtype: element type of the caches.
    window: how many tokens a query sees, itself included; None: all before it. Only with `causal`.
    soft_cap: scores become soft_cap * tanh(score / soft_cap); None: they stay. Before ALiBi.
    sinks: whether a learned logit a head, neither scaled nor capped, joins the softmax's
        denominator.
    alibi: whether each head adds slope * (key position - query position) to its scores, before
        they are masked.
    causal: whether a query sees no key after it.
    block_size: slots in a block of the cache; None before a cache exists.
    device: "cuda" (ROCm too) or "cpu". capability: (major, minor) of an NVIDIA GPU, else None.
    """

    heads: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    causal: bool = True
    block_size: int | None = None
    device: str = "cuda"
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class AttentionSizes:
    """The most that a call may hold.

    tokens: query tokens of a step. requests: requests of a step. seq_len: tokens of a request.
    captured: numbers of tokens that CUDA graphs are captured for; empty without graphs.
    """

    tokens: int
    requests: int
    seq_len: int
    captured: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttentionCall:
    """One layer, one step. T query tokens, B requests, as tensors on the layer's device.

    spec: the layer.
    query: [T, heads, head_size], spec.dtype, by stride; as in the caches and `out`, the channels of
        a head lie side by side, and where they are a multiple of 16 bytes each begins at one.
    key_cache, value_cache: [blocks, block_size, kv_heads, head_size], spec.kv_dtype; views of the
        cache itself by stride. Keys and values of this step's tokens are in them already.
    block_table: [B, max blocks], int32: blocks of each request in order; what lies beyond
        ceil(seq_len / block_size), and blocks that a window left behind, may be anything valid.
    seq_lens: [B], int32: tokens of each request, this step's included; 0 is a padded row.
    query_start_loc: [B + 1], int32: where a request's query tokens begin; its last query token is
        the token at seq_len - 1. T may be larger than query_start_loc[B]: padding.
    max_query_len, max_seq_len: not less than any request's; under a CUDA graph, than any replay's.
    scale: factor of query times key, positive.
    out: [T, heads, head_size], spec.dtype, by stride. Rows of padding are left alone or written.
    sinks: [heads], of any floating type, where spec.sinks.
    alibi_slopes: [heads], float32, where spec.alibi.
    workspace: [bytes], uint8, at least what `workspace` asked for; None where that was 0.
    counters: [n], int32, zeros, at least as many as `counters` asked for; None where that was 0.
    """

    spec: AttentionSpec
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    max_query_len: int
    max_seq_len: int
    scale: float
    out: torch.Tensor
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    workspace: torch.Tensor | None = None
    counters: torch.Tensor | None = None


class AttentionKernel(Kernel[AttentionSpec, AttentionSizes, AttentionCall]):
    """A kernel for attention.

    max_query_len: the most query tokens of a request that `run` takes (1: it only decodes); a step
    with more is stock's. None: any number.
    """

    op = ATTENTION
    max_query_len: ClassVar[int | None] = None
