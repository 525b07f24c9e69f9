"""Writing tokens into a KV cache by the release's own cache update."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from infera_compat.errors import Refused

Write = Callable[[Any, Any, Any, Any], None]
"""write(cache, key, value, slots): key, value [tokens, heads, channels] of the cache's dtype, value
None for MLA; slots int64 [tokens], block * block_size + slot in the block."""


def writer(impl: Any, layer: Any) -> Write:
    """What writes a layer's new tokens into its cache, in this release.

    impl: the layer's stock implementation. layer: the layer, for its scales.
    Raises Refused where there is no such thing.
    """
    if hasattr(impl, "forward_mqa"):
        return _mla(impl, layer)
    if hasattr(impl, "do_kv_cache_update"):

        def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
            impl.do_kv_cache_update(layer, key, value, cache, slots)

        return write
    if hasattr(impl, "forward") and type(impl).__module__.endswith("backends.cpu_attn"):
        return _forward_writes(impl, layer)
    raise Refused(f"{type(impl).__name__} has no cache update that is known here")


def _mla(impl: Any, layer: Any) -> Write:
    """Upstream: v1/attention/backend.py:MLAAttentionImpl.do_kv_cache_update (some override it)."""

    def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
        rank = impl.kv_lora_rank
        latent = key[:, 0, :rank].contiguous()
        rope = key[:, :, rank:].contiguous()
        impl.do_kv_cache_update(latent, rope, cache, slots, impl.kv_cache_dtype, layer._k_scale)

    return write


def _forward_writes(impl: Any, layer: Any) -> Write:
    """CPU_ATTN until 0.23: forward writes the cache first. It is given no token to attend.

    Upstream: v1/attention/backends/cpu_attn.py:CPUAttentionBackendImpl.forward. Goes with 0.23.
    """
    cpu_attn = importlib.import_module("vllm.v1.attention.backends.cpu_attn")

    def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
        metadata = SimpleNamespace(
            num_actual_tokens=0,
            use_sdpa_prefill=False,
            slot_mapping=slots,
            isa=cpu_attn._get_attn_isa(key.dtype, int(cache.shape[-2]), impl.head_size, "auto"),
        )
        query = key.new_zeros(key.shape[0], impl.num_heads, impl.head_size)
        impl.forward(layer, query, key, value, cache, metadata, query.clone())

    return write
