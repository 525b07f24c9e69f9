"""MoE on the CPU until 0.27, by vLLM's own registry of replaced ops.

Upstream: vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py; there the CPU's
method runs `apply_monolithic`, which routes too, so nothing but handing over can be done here.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_compat.errors import Refused
from infera_shims.seams.fired import Witness, open_book

if TYPE_CHECKING:
    from infera_compat.binding import Binding

MODULE = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
CLASS = "UnquantizedFusedMoEMethod"
NAME = "register_oot"

_ours: set[type] = set()


def bind(binding: Binding) -> str:
    """Register our subclass once vLLM imports the method's module."""
    binding.once_imported(MODULE, _register)
    return NAME


def is_ours(method: object) -> bool:
    """Whether a layer's quantisation method is an instance of our subclass."""
    return type(method) in _ours


def _register(module: ModuleType, binding: Binding) -> None:
    registry = importlib.import_module("vllm.model_executor.custom_op").op_registry_oot
    if CLASS in registry:
        raise Refused(f"{CLASS} is replaced already, by {registry[CLASS].__module__}")
    stock: Any = getattr(module, CLASS)
    ledger = binding.ledger
    open_book(ledger)

    class Bound(stock):
        __doc__ = stock.__doc__

        def apply_monolithic(
            self, layer: Any, x: Any, router_logits: Any, *args: Any, **kw: Any
        ) -> Any:
            result = super().apply_monolithic(layer, x, router_logits, *args, **kw)
            Witness("moe", ledger, layer.layer_name).fired(result)
            return result

    # vLLM compares class names in places, and finds the replacement by this one.
    Bound.__name__, Bound.__qualname__, Bound.__module__ = CLASS, CLASS, __name__
    binding.originals.on_restore(lambda: registry.pop(CLASS, None))
    stock.register_oot(Bound)
    # register_oot names the op after the class; `custom_ops` addresses it by the stock name.
    Bound.name = stock.name
    _ours.add(Bound)
