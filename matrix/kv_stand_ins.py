"""Stand-ins for the kernels that write a KV cache, where there is no GPU to run stock's own.

Stock's Python still makes the cache tensor and takes it apart into key_cache and value_cache; only
the last step, the kernel that copies tokens into those two, is ours: plain indexing, by the shapes
that stock's kernels document. So a run with them shows a release's tensor and how its Python reads
it, not what its kernel does; the result file says which kernels ran.
"""

from __future__ import annotations

import importlib
from typing import Any

OPS = "_C_cache_ops"


def _into(cache: Any, slots: Any, tokens: Any) -> None:
    """tokens [T, heads, channels] into [blocks, block_size, heads, channels]."""
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = tokens


def _into_packed(key_cache: Any, value_cache: Any, slots: Any, key: Any, value: Any) -> None:
    """tokens into K [B, H, D/x, N, x] and V [B, H, D, N]."""
    block_size, x = key_cache.shape[3:]
    block, slot = slots // block_size, slots % block_size
    key_cache[block, :, :, slot] = key.unflatten(-1, (-1, x))
    value_cache[block, :, :, slot] = value


def _reshape_and_cache(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, *_: Any, **__: Any
) -> None:
    if key_cache.dim() == 5:
        _into_packed(key_cache, value_cache, slots, key, value)
    else:
        _into(key_cache, slots, key)
        _into(value_cache, slots, value)


def _concat_and_cache_mla(
    latent: Any, rope: Any, cache: Any, slots: Any, *_: Any, **__: Any
) -> None:
    torch = importlib.import_module("torch")
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = torch.cat([latent, rope], dim=-1)


def install() -> None:
    """Put them where stock's Python looks its kernels up, for this process."""
    torch = importlib.import_module("torch")
    ops = getattr(torch.ops, OPS)
    ops.reshape_and_cache_flash = _reshape_and_cache
    ops.reshape_and_cache = _reshape_and_cache
    ops.concat_and_cache_mla = _concat_and_cache_mla
    for name, attribute in (
        ("flash_attn", "reshape_and_cache_flash"),
        ("triton_attn", "triton_reshape_and_cache_flash"),
        ("rocm_attn", "triton_reshape_and_cache_flash"),
    ):
        try:
            module = importlib.import_module(f"vllm.v1.attention.backends.{name}")
        except ImportError:
            continue  # the row of that backend says so
        setattr(module, attribute, _reshape_and_cache)
    paged = importlib.import_module("vllm.v1.attention.ops.paged_attn")
    if not hasattr(paged, "ops"):  # it imports them on GPUs only
        paged.ops = importlib.import_module("vllm._custom_ops")
