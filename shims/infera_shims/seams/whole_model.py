"""Both ops by the whole model: a subclass of stock's that binds its own modules once it is made.

Upstream: vllm/model_executor/models/registry.py `ModelRegistry.register_model`. For the
architectures below and only when asked for: where a model goes past every layer class, this is
what is left. The subclass keeps the stock class's name (drafters compare it) and everything else.
"""

from __future__ import annotations

import functools
import importlib
import sys
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from infera_compat.errors import Refused
from infera_shims.needs import MODELS, REGISTRY
from infera_shims.seams import layer, shadowed
from infera_shims.seams.fired import Witness, open_book

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_shims.shim import Shim

NAME = "model"
ARCHITECTURES = {
    "LlamaForCausalLM": f"{MODELS}.llama",
    "Qwen3ForCausalLM": f"{MODELS}.qwen3",
    "Qwen3MoeForCausalLM": f"{MODELS}.qwen3_moe",
    "DeepseekV2ForCausalLM": f"{MODELS}.deepseek_v2",
}
METHODS = ("apply", "apply_monolithic")

# The ops that are bound by this seam, and the registry's entries that ours stand in for.
_bound: dict[str, tuple[Binding, Shim]] = {}
_stock: dict[str, Any] = {}


class Shadow:
    """Our stand-in for one method of a MoE layer's quantisation method."""

    def __init__(self, stock: Any, layer_name: str, binding: Binding) -> None:
        """Stand before `stock`, and count under the layer's name."""
        self.stock = stock
        self.witness = Witness("moe", binding.ledger, layer_name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count, and run stock's method."""
        # (layer, x, …) by its contract; another plugin's method may not name its parameters.
        self.witness.fired(kwargs["x"] if "x" in kwargs else args[1])
        return self.stock(*args, **kwargs)


def bind(binding: Binding, shim: Shim) -> None:
    """Register our subclasses over the stock models, for this op too.

    An architecture that another plugin holds stays its own. Raises Refused where all of them do.
    """
    registry = importlib.import_module(REGISTRY).ModelRegistry
    models = registry.models
    held = {x: _held(models, x) for x in ARCHITECTURES if not _is_ours(models.get(x))}
    others = [reason for reason in held.values() if reason]
    if len(others) == len(ARCHITECTURES):
        raise Refused("; ".join(others))
    binding.choice.notes.extend(others)
    _bound[binding.choice.op] = (binding, shim)
    open_book(binding.ledger)
    binding.originals.on_restore(partial(_unbind, binding.choice.op))
    for architecture in [x for x, reason in held.items() if reason is None]:
        _stock[architecture] = models[architecture]
        registry.register_model(architecture, f"{__name__}:{_name(architecture)}")


def of(method: Any) -> Shadow | None:
    """The shadow on a MoE layer's quantisation method, or None."""
    return shadowed.on(method, Shadow)


def __getattr__(name: str) -> Any:
    """Make a model's subclass when vLLM asks for it."""
    architecture = name.partition("__")[0]
    if architecture not in ARCHITECTURES or name != _name(architecture):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = model = _subclass(architecture)
    return model


def _name(architecture: str) -> str:
    """The subclass's name in this module.

    It carries vLLM's release: vLLM keeps what it learnt of a model class in a file that is named
    after the class and keyed by the file that defines it, which is this one in every release.
    """
    release: str = importlib.import_module("vllm.version").__version__
    return f"{architecture}__{''.join(c if c.isalnum() else '_' for c in release)}"


def _held(models: Any, architecture: str) -> str | None:
    """Who holds an architecture instead of stock vLLM, or None."""
    entry = models.get(architecture)
    wanted = (ARCHITECTURES[architecture], architecture)
    if entry is not None and {"module_name", "class_name"} <= set(vars(entry)):
        found = (entry.module_name, entry.class_name)
        return None if found == wanted else f"{architecture} is registered as {':'.join(found)}"
    return f"{architecture} is registered as {entry!r}, not as stock's class"


def _is_ours(entry: Any) -> bool:
    return entry is not None and vars(entry).get("module_name") == __name__


def _unbind(op: str) -> None:
    _bound.pop(op, None)
    if not _bound and _stock:
        models = importlib.import_module(REGISTRY).ModelRegistry.models
        for architecture, entry in _stock.items():
            if _is_ours(models.get(architecture)):
                models[architecture] = entry
        _stock.clear()


def _subclass(architecture: str) -> type:
    stock: Any = getattr(importlib.import_module(ARCHITECTURES[architecture]), architecture)
    stock_init = stock.__init__

    @functools.wraps(stock_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        for op, (binding, shim) in tuple(_bound.items()):
            # A module that can't be bound must not lose a model: the op goes back to stock.
            with binding:
                _BINDERS[op](self, binding, shim)

    return type(
        architecture,
        (stock,),
        {"__module__": __name__, "__doc__": stock.__doc__, "__init__": __init__},
    )


def _bind_attention(model: Any, binding: Binding, shim: Shim) -> None:
    classes = tuple(
        vars(sys.modules[module])[cls]
        for cls, (module, _) in layer.LAYERS.items()
        if module in sys.modules
    )
    for module in model.modules():
        if isinstance(module, classes):
            layer.shadow(module, NAME, binding)


def _bind_moe(model: Any, binding: Binding, shim: Shim) -> None:
    where = shim.moe_layer.value
    module_name, _, cls = where.held_by.partition(":")
    if module_name not in sys.modules:
        return  # a dense model
    held_by = vars(sys.modules[module_name])[cls]
    for module in model.modules():
        if isinstance(module, held_by):
            _shadow(attrgetter(where.method)(module), module.layer_name, binding)


def _shadow(method: Any, layer_name: str, binding: Binding) -> None:
    if of(method):
        return
    for name in METHODS:
        ours = Shadow(getattr(method, name), layer_name, binding)
        shadowed.put(method, name, ours, binding.originals)


_BINDERS = {"attention": _bind_attention, "moe": _bind_moe}
