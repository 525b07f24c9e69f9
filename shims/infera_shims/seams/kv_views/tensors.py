"""A small KV cache tensor, made by the release's own shape, stride and layout code.

Until 0.28 a backend gives its cache's shape and the order of its axes in memory; from 0.29 on the
layer's spec and the engine's KVCacheLayout do. Which of the two holds is asked of the module that
has them, not of the version. Each tensor has a storage of its own, which the probe looks at whole.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from math import prod
from typing import Any

INTERFACE = "vllm.v1.kv_cache_interface"


@dataclass(frozen=True)
class Sizes:
    """The sizes of a cache: primes where they may be, so that no two axes are mistaken.

    kv_heads: 1 for MLA. head_size: all channels of a token for MLA. block_size: the block that
    kernels see. mla: whether there is one latent vector a token, and no V apart from it.
    """

    blocks: int
    block_size: int
    kv_heads: int
    head_size: int
    mla: bool = False


def has_specs() -> bool:
    """Whether caches are made from specs and layouts here (from 0.29 on), not from shapes."""
    return hasattr(importlib.import_module(INTERFACE), "create_kv_cache_views")


def layouts(backend: Any) -> tuple[Any, ...]:
    """The KVCacheLayouts that a backend takes (from 0.29 on); empty where there are none."""
    if not has_specs():
        return ()
    interface = importlib.import_module(INTERFACE)
    return tuple(backend.supported_kv_cache_layouts() or interface.KVCacheLayout)


def spec_for(backend: Any, sizes: Sizes, dtype: Any) -> Any:
    """The KV cache spec of a layer of these sizes, as the backend customises it (from 0.29 on)."""
    interface = importlib.import_module(INTERFACE)
    kind = interface.MLAAttentionSpec if sizes.mla else interface.FullAttentionSpec
    return backend.customize_spec(
        kind(
            block_size=sizes.block_size,
            num_kv_heads=sizes.kv_heads,
            head_size=sizes.head_size,
            dtype=dtype,
        )
    )


def by_spec(spec: Any, layout: Any, blocks: int, device: Any, *, layers: int = 2) -> Any:
    """A layer's cache as the worker views it from a spec, [B, H, N, content] (from 0.29 on).

    layout: a KVCacheLayout. layers: how many lie in the allocation; the last one's is returned, so
    that layouts with the layers inside the blocks show their gaps.
    Upstream: v1/kv_cache_interface.py:create_kv_cache_views, called by allocate_kv_cache.
    """
    torch = importlib.import_module("torch")
    interface = importlib.import_module(INTERFACE)
    names = [str(layer) for layer in range(layers)]
    layer_stride, block_stride, *_ = interface.compute_layout_strides(spec, blocks, layers, layout)
    size = layers * blocks * spec.page_size_bytes
    place = interface.KVCacheTensor(
        size=size, layers=names, layer_stride=layer_stride, block_stride=block_stride
    )
    raw = torch.zeros(size, dtype=torch.int8, device=device)
    return interface.create_kv_cache_views(raw, spec, blocks, layout, place)[-1]


def by_shape(backend: Any, sizes: Sizes, dtype: Any, device: Any, *, page_padding: int = 0) -> Any:
    """A layer's cache as the worker views it from the backend's shape and stride order (to 0.28).

    page_padding: elements between two blocks, for shapes that have the blocks outermost in memory.
    Upstream: v1/worker/gpu/attn_utils.py:_reshape_kv_cache, v1/worker/gpu_model_runner.py.
    """
    torch = importlib.import_module("torch")
    shape = backend.get_kv_cache_shape(
        sizes.blocks, sizes.block_size, sizes.kv_heads, sizes.head_size, cache_dtype_str="auto"
    )
    try:
        order = tuple(backend.get_kv_cache_stride_order())
    except (AttributeError, NotImplementedError):
        order = tuple(range(len(shape)))
    if page_padding and (order[0] != 0 or shape[0] != sizes.blocks):
        raise ValueError(f"blocks are not outermost in {shape} ordered {order}")
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    strides[order[0]] += page_padding
    elements = prod(shape) + page_padding * shape[0]
    raw = torch.zeros(elements, dtype=dtype, device=device)
    return raw.as_strided(shape, strides)


def bound(cache: Any, sizes: Sizes) -> Any:
    """The tensor as the layer hands it to `impl.forward`: MLA layers drop the heads' axis.

    Upstream: model_executor/layers/attention/mla_attention.py:MLAAttention.bind_kv_cache (0.29 on).
    """
    return cache.squeeze(1) if sizes.mla and cache.dim() == 4 else cache
