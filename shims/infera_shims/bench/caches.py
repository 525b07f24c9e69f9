"""A layer's KV cache in several regions of one allocation, as the release's worker would lay it.

A call that takes a region has a whole cache to itself, as each layer of a model has: together they
are so large that a GPU's L2 does not serve them.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends import utils

from infera_shims.seams.kv_views import tensors
from infera_shims.seams.kv_views.regimes import Regime
from infera_shims.seams.kv_views.tensors import Sizes

PROBED = 16
"""Blocks of the cache that stands in while the layer is bound."""


def resolve(config: Any, backend: Any) -> None:
    """Have the layout of caches resolved as the engine core does (0.29 on).

    Upstream: vllm/v1/attention/backends/utils.py `resolve_kv_cache_layout`.
    """
    if tensors.has_specs():
        names = [each.name for each in utils.get_supported_kv_cache_layouts([backend])]
        utils.resolve_kv_cache_layout(config, [names])


def cache(layer: Any, config: Any, block: int, blocks: int, device: torch.device) -> Any:
    """A cache of that many blocks for a layer."""
    backend, dtype = layer.attn_backend, config.model_config.dtype
    if tensors.has_specs():
        layout = config.cache_config.get_resolved_kv_cache_layout()
        spec = layer.get_kv_cache_spec(config)
        return tensors.by_spec(spec, layout, blocks, device, layers=1)
    sizes = Sizes(blocks, block, layer.num_kv_heads, layer.head_size)
    return tensors.by_shape(backend, sizes, dtype, device)


def regions(whole: Any, regime: Regime, count: int) -> tuple[Any, ...]:
    """The cache in `count` parts along its blocks, each a cache of its own."""
    axis = regime.seen.index("B")
    blocks = whole.shape[axis] // count
    return tuple(whole.narrow(axis, number * blocks, blocks) for number in range(count))
