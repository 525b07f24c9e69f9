"""Classes that vLLM lets be replaced by name: each by a subclass that counts and hands over.

Upstream: vllm/model_executor/custom_op.py. `CustomOp` and `PluggableLayer` look up the name of the
class that is being made in `op_registry_oot`, and make an instance of what stands there; a name
that no class has would be accepted and never come to effect, so it is looked up in `op_registry`.

Three classes: the wrapper around MLA attention, the MoE layer (FusedMoE until 0.23, RoutedExperts
from 0.24 on), and the method of unquantised MoE layers, experts and on some platforms routing too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_compat.errors import Refused
from infera_shims.needs import CUSTOM_OP, METHOD, MLA_WRAPPER
from infera_shims.seams import owners
from infera_shims.seams.fired import Witness, open_book
from infera_shims.shim import Replaced

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_shims.shim import Shim

MLA_LAYER = Replaced(
    symbol=f"{MLA_WRAPPER}:MultiHeadLatentAttentionWrapper",
    registered="multi_head_latent_attention",
    methods=("forward",),
    given=("hidden_states", 1),
    layer_name="mla_attn.layer_name",
)
MOE_METHOD = Replaced(
    symbol=f"{METHOD}:UnquantizedFusedMoEMethod",
    registered="unquantized_fused_moe",
    methods=("apply", "apply_monolithic"),
    given=("x", 0),  # after the layer
    layer_name="",  # one method may serve several layers: each call says for which
)

_ours: set[type] = set()


def bind_mla_layer(binding: Binding, shim: Shim) -> None:
    """Replace the wrapper around MLA attention once vLLM imports it."""
    _once_imported(binding, MLA_LAYER)


def bind_moe_layer(binding: Binding, shim: Shim) -> None:
    """Replace this release's MoE layer class once vLLM imports it."""
    _once_imported(binding, shim.moe_replaced.value)


def bind_moe_method(binding: Binding, shim: Shim) -> None:
    """Replace the method of unquantised MoE layers once vLLM imports it."""
    _once_imported(binding, MOE_METHOD)


def is_ours(part: object) -> bool:
    """Whether a layer or a method is an instance of a subclass made here."""
    return type(part) in _ours


def _once_imported(binding: Binding, what: Replaced) -> None:
    module, _, cls = what.symbol.partition(":")
    registry = importlib.import_module(CUSTOM_OP).op_registry_oot
    if cls in registry:
        raise Refused(f"{cls} is replaced already, by {registry[cls].__module__}")
    binding.once_imported(module, partial(_replace, what, cls))


def _replace(what: Replaced, cls: str, module: ModuleType, binding: Binding) -> None:
    custom_op = importlib.import_module(CUSTOM_OP)
    stock: Any = vars(module)[cls]
    if custom_op.op_registry.get(what.registered) is not stock:
        raise Refused(f"{cls} is not what vLLM registers as {what.registered!r}")
    if cls in custom_op.op_registry_oot:
        by = custom_op.op_registry_oot[cls].__module__
        raise Refused(f"{cls} is replaced already, by {by}")
    open_book(binding.ledger)
    for name in what.methods:
        other = owners.other(getattr(stock, name))
        if other:
            binding.choice.notes.append(f"{cls}.{name} is wrapped by {other} too")
    methods = {name: _counted(getattr(stock, name), what, binding) for name in what.methods}
    body = {
        # vLLM compares class names in places, and finds the replacement by this one.
        "__module__": __name__,
        "__qualname__": cls,
        "__doc__": stock.__doc__,
        **methods,
    }
    if what.layer_name:
        body["__init__"] = _named(stock.__init__, what, binding)
    ours: Any = type(cls, (stock,), body)
    binding.originals.on_restore(partial(_stand_back, ours, custom_op.op_registry_oot, methods))
    stock.register_oot(ours)
    # register_oot names the class after itself; `custom_ops` addresses it by the stock name.
    ours.name = stock.name
    _ours.add(ours)


def _stand_back(ours: Any, registry: Any, methods: dict[str, Any]) -> None:
    """Leave the name and the methods, but for what another put in their place by now.

    What was made of ours runs stock's code from then on.
    """
    if registry.get(ours.__name__) is ours:
        del registry[ours.__name__]
    for name, method in methods.items():
        if vars(ours).get(name) is method:
            delattr(ours, name)
    _ours.discard(ours)


def _named(stock: Callable[..., None], what: Replaced, binding: Binding) -> Any:
    """The constructor: stock's, then the layer's name is kept, and that it was made."""
    op, ledger = binding.choice.op, binding.ledger

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        self.infera_layer = attrgetter(what.layer_name)(self)
        ledger.made[op, self.infera_layer] = "pluggable_layer"

    return __init__


def _counted(stock: Callable[..., Any], what: Replaced, binding: Binding) -> Any:
    """A method that counts its call and runs stock's; Dynamo may trace through it."""
    op, ledger = binding.choice.op, binding.ledger

    name, place = what.given

    if what.layer_name:

        @functools.wraps(stock)
        def layer_method(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = kwargs[name] if name in kwargs else args[place]
            Witness(op, ledger, self.infera_layer).fired(given)
            return stock(self, *args, **kwargs)

        return layer_method

    @functools.wraps(stock)
    def method(self: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs[name] if name in kwargs else args[place]
        Witness(op, ledger, layer.layer_name).fired(given)
        return stock(self, layer, *args, **kwargs)

    return method
