"""Decoding over the latent cache of MLA, in the latent space; all heads share a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infera_compat.kernels.kernel import MLA_DECODE, Kernel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MlaDecodeSpec:
    """What is known of a layer before it runs.

    heads: query heads of this rank. latent: channels of a token that are key and value both
    (kv_lora_rank). rope: channels of a token that are key alone, after those.
    dtype: element type of query and out. kv_dtype: element type of the cache.
    block_size: slots in a block of the cache; None before a cache exists.
    lse: whether the logarithms of the softmax's denominators are asked for.
    device, capability: as AttentionSpec's.
    """

    heads: int
    latent: int
    rope: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int | None = None
    lse: bool = False
    device: str = "cuda"
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class MlaDecodeSizes:
    """The most that a call may hold: as AttentionSizes."""

    tokens: int
    requests: int
    seq_len: int
    captured: tuple[int, ...] = ()


@dataclass(frozen=True)
class MlaDecodeCall:
    """One layer, one step. B requests of the same number of query tokens: T = B * (T // B).

    spec: the layer.
    query: [T, heads, latent + rope], spec.dtype. Token i of a request stands at position
        seq_len - (T // B) + i and sees no token after it.
    cache: [blocks, block_size, latent + rope], spec.kv_dtype, by stride; this step's tokens are in
        it. Keys are all channels, values the first `latent`.
    block_table: [B, max blocks], int32. seq_lens: [B], int32, this step's tokens included; where it
        is 0 (a padded row), out gets zeros and lse -inf.
    max_seq_len: not less than any request's; under a CUDA graph, than any replay's.
    scale: factor of query times key.
    out: [T, heads, latent], spec.dtype.
    lse: [T, heads], float32, natural logarithm, where spec.lse.
    workspace, counters: as AttentionCall's.
    """

    spec: MlaDecodeSpec
    query: torch.Tensor
    cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int
    scale: float
    out: torch.Tensor
    lse: torch.Tensor | None = None
    workspace: torch.Tensor | None = None
    counters: torch.Tensor | None = None


class MlaDecodeKernel(Kernel[MlaDecodeSpec, MlaDecodeSizes, MlaDecodeCall]):
    """A kernel for decoding with MLA."""

    op = MLA_DECODE
