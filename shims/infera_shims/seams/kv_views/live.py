"""Probing the cache of a layer in a live worker, beside it: the real cache is looked at, not used.

For once per attention group, after the worker has bound its KV caches and before it serves.
"""

from __future__ import annotations

from typing import Any

from infera_compat.errors import Refused
from infera_shims.seams.kv_views import probe, tensors, update, views
from infera_shims.seams.kv_views.regimes import CANDIDATES, PACKED, Regime, name_of
from infera_shims.seams.kv_views.tensors import Sizes

BLOCKS = (7, 11, 13)


def probe_layer(layer: Any, config: Any) -> Regime:
    """The regime of a live layer's cache: probed on a small one of its kind on the same device.

    layer: an Attention or MLAAttention whose `kv_cache` is bound (of layers that share a cache, the
    one that writes it). config: the worker's VllmConfig.
    Raises Refused as probe.probe does, and where the real cache is not like the one probed.
    """
    small, sizes, name = beside(layer, config)
    regime = probe.probe(name, small, sizes, update.writer(layer.impl, layer))
    views.alike(layer.kv_cache, small, regime)
    return regime


def beside(layer: Any, config: Any) -> tuple[Any, Sizes, str]:
    """A small cache like a live layer's, made as the worker made the real one; sizes; backend.

    Raises Refused where the backend is unknown, the real cache quantised, or its shape none that
    is known for the backend. Packed contents are left to the probe, which shows that they are.
    """
    backend, real = layer.attn_backend, layer.kv_cache
    name = name_of(backend)
    if name not in PACKED:
        views.readable(real, name)
    mla = hasattr(layer.impl, "forward_mqa")
    kv_heads = 1 if mla else layer.impl.num_kv_heads
    head_size = layer.head_size if mla else layer.impl.head_size
    possible = {
        int(real.shape[regime.seen.index("N")])
        for regime in CANDIDATES[name]
        if views.fits(tuple(real.shape), regime, kv_heads, head_size)
    }
    if len(possible) != 1:
        raise Refused(f"{name}: the size of a block is not certain; found {views.looks(real)}")
    (block_size,) = possible
    taken = (2, block_size, kv_heads, head_size)
    count = next(prime for prime in BLOCKS if prime not in taken)
    sizes = Sizes(count, block_size, kv_heads, head_size, mla)
    if tensors.has_specs():
        spec = tensors.spec_for(backend, sizes, real.dtype)
        layout = config.cache_config.get_resolved_kv_cache_layout()
        small = tensors.by_spec(spec, layout, count, real.device)
    else:
        small = tensors.by_shape(backend, sizes, real.dtype, real.device)
    return tensors.bound(small, sizes), sizes, name
