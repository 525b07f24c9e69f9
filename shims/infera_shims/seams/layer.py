"""Attention by the layer: methods of its `impl`, shadowed on that instance once it is made.

Upstream: vllm/model_executor/layers/attention/attention.py `Attention` calls `self.impl.forward`,
mla_attention.py `MLAAttention` calls `self.impl.forward_mha` and `forward_mqa`, in every release
from inside an opaque op. No class changes but for the two constructors, which are wrapped: every
check that vLLM makes of a backend or an impl sees the stock object.
"""

from __future__ import annotations

import functools
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_shims.needs import ATTENTION, MLA_ATTENTION
from infera_shims.seams import backends, owners, shadowed

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_compat.ledger import Ledger
    from infera_shims.shim import Shim

NAME = "layer"
# By the layer's class: its module, and the methods of its impl that run a kernel.
LAYERS = {
    "Attention": (ATTENTION, ("forward",)),
    "MLAAttention": (MLA_ATTENTION, ("forward_mha", "forward_mqa")),
}


class Shadow:
    """Our stand-in for one method of a layer's impl, over whatever stood there before."""

    def __init__(self, stock: Any, seam: str, layer: str, ledger: Ledger) -> None:
        """Stand before `stock`, and count under the layer's name."""
        self.stock, self.seam, self.layer = stock, seam, layer
        self._count = ledger.count

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count, and hand over: the same arguments in, what stock returns out."""
        self._count("attention", self.layer)
        return self.stock(*args, **kwargs)


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
    for method in methods_of(layer):
        ours = Shadow(getattr(impl, method), seam, layer.layer_name, binding.ledger)
        shadowed.put(impl, method, ours, binding.originals)


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


def of(impl: Any) -> Shadow | None:
    """The shadow that stands on a layer's impl, or None."""
    return shadowed.on(impl, Shadow)


def _classes(layer: Any) -> set[str]:
    return {base.__name__ for base in type(layer).__mro__}
