"""Attention by the layer: methods of its `impl`, shadowed on that instance once it is made.

Upstream: vllm/model_executor/layers/attention/attention.py `Attention` calls `self.impl.forward`,
mla_attention.py `MLAAttention` calls `self.impl.forward_mha` and `forward_mqa`, in every release
from inside an opaque op. No class changes but for the two constructors, which are wrapped: every
check that vLLM makes of a backend or an impl sees the stock object.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_compat.kernels.kernel import MLA_DECODE
from infera_shims.needs import ATTENTION, MLA_ATTENTION
from infera_shims.seams import backends, owners, shadowed

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_shims.shim import Shim

NAME = "layer"
# By the layer's class: its module, and the methods of its impl that run a kernel.
LAYERS = {
    "Attention": (ATTENTION, ("forward",)),
    "MLAAttention": (MLA_ATTENTION, ("forward_mha", "forward_mqa")),
}


class Shadow:
    """Our stand-in for one method of a layer's impl, over whatever stood there before."""

    def __init__(self, stock: Any, seam: str, layer: str, method: str, binding: Binding) -> None:
        """Stand before `stock`, and count under the layer's name."""
        self.stock, self.seam, self.layer = stock, seam, layer
        self._count = binding.ledger.count
        self._adapter, self._by_kernel = binding.adapter, BY_KERNEL.get(method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count, and hand over: the same arguments in, what stock returns out.

        With a kernel: what that returns, and a count, where it took the step.
        """
        if self._adapter is None:
            self._count("attention", self.layer)
        elif self._by_kernel is not None:
            returned = self._by_kernel(self._adapter, *args, **kwargs)
            if returned is not None:
                self._count("attention", self.layer)
                return returned
        return self.stock(*args, **kwargs)


class CacheWrite:
    """Our stand-in for the cache update of a layer that a kernel has written in its own order."""

    def __init__(self, stock: Any, adapter: Any) -> None:
        """Stand before `stock`."""
        self.stock, self._adapter = stock, adapter

    def __call__(self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any) -> None:
        """Write the cache, or let stock."""
        if self._adapter.writes(layer):
            self._adapter.write(layer, key, value, kv_cache, slot_mapping)
        else:
            self.stock(layer, key, value, kv_cache, slot_mapping)


def _forward(
    adapter: Any,
    layer: Any,
    query: Any,
    key: Any,
    value: Any,
    kv_cache: Any,
    attn_metadata: Any,
    output: Any,
    output_scale: Any = None,
    output_block_scale: Any = None,
) -> Any:
    ran = adapter.run(
        layer, query, kv_cache, attn_metadata, output, output_scale, output_block_scale
    )
    return output if ran else None


def _forward_mqa(adapter: Any, q: Any, kv_cache: Any, attn_metadata: Any, layer: Any) -> Any:
    return adapter.run(layer, q, kv_cache, attn_metadata)


BY_KERNEL: Mapping[str, Callable[..., Any]] = {"forward": _forward, "forward_mqa": _forward_mqa}
"""How a method's arguments go to a kernel; the result is None where it did not run."""


def bind(binding: Binding, shim: Shim) -> None:
    """Wrap the two constructors once vLLM imports their modules."""
    for cls, (module, _) in LAYERS.items():
        binding.once_imported(module, partial(_hook, cls))


def _hook(cls: str, module: ModuleType, binding: Binding) -> None:
    layer_class: Any = vars(module)[cls]
    stock = layer_class.__init__

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        # A layer that can't be shadowed must not lose a model: the op goes back to stock.
        with binding:
            if binding.choice.kernel:
                shadow(self, NAME, binding)

    other = owners.other(stock)
    if other:
        binding.choice.notes.append(f"{cls}.__init__ is wrapped by {other} too")
    binding.originals.replace(layer_class, "__init__", __init__)


def shadow(layer: Any, seam: str, binding: Binding) -> None:
    """Shadow the methods of a layer's impl, unless it is bound already or can't be.

    Left alone: an impl that is not stock vLLM's, and a layer that Dynamo would trace into.
    """
    impl = layer.impl
    if backends.is_ours(impl) or of(impl) or reason_against(layer):
        return
    adapter = binding.adapter
    if other_kind(layer, adapter):
        return
    for method in methods_of(layer):
        ours = Shadow(getattr(impl, method), seam, layer.layer_name, method, binding)
        shadowed.put(impl, method, ours, binding.originals)
    if adapter is not None and backends.packs(type(impl)):
        write = CacheWrite(impl.do_kv_cache_update, adapter)
        shadowed.put(impl, "do_kv_cache_update", write, binding.originals)


def methods_of(layer: Any) -> tuple[str, ...]:
    """The methods of this layer's impl that run a kernel; sparse MLA's has no forward_mha."""
    found = next(methods for cls, (_, methods) in LAYERS.items() if cls in _classes(layer))
    return tuple(method for method in found if hasattr(layer.impl, method))


def reason_against(layer: Any) -> str | None:
    """Why a layer can't be bound here, or None."""
    if LAYERS.keys().isdisjoint(_classes(layer)):
        return f"{type(layer).__qualname__} is none of {' and '.join(LAYERS)}"
    if not owners.is_stock(type(layer.impl)):
        return f"its implementation is {type(layer.impl).__module__}'s, not stock vLLM's"
    if layer.use_direct_call:
        return "vLLM calls it directly on this platform, so that Dynamo traces into it"
    return None


def other_kind(layer: Any, adapter: Any) -> str | None:
    """Why a layer is not for this adapter's kernel whatever it is like, or None."""
    mla = hasattr(layer.impl, "forward_mqa")
    if adapter is None or (adapter.kernel.op == MLA_DECODE) == mla:
        return None
    kind = "MLA" if mla else "no MLA"
    return f"{adapter.kernel.name} is a kernel for {adapter.kernel.op}, this is {kind}"


def of(impl: Any) -> Shadow | None:
    """The shadow that stands on a layer's impl, or None."""
    return shadowed.on(impl, Shadow)


def _classes(layer: Any) -> set[str]:
    return {base.__name__ for base in type(layer).__mro__}
