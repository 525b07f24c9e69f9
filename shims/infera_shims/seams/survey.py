"""The layers that vLLM built, and for each what stands in it, or why nothing does."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from infera_compat.errors import Refused
from infera_compat.ledger import Choice, Layer, Ledger
from infera_shims.seams import (
    backends,
    layer,
    modular_kernel,
    owners,
    replaced,
    shadowed,
    whole_model,
)

if TYPE_CHECKING:
    from infera_compat.install import Installation
    from infera_shims.shim import MoeLayer

# Why a layer that could be bound is not, by the seam that was to do it.
NOT_REACHED = {
    "get_attn_backend_cls": "it did not ask the platform for its backend",
    "platform": "it did not ask the platform for its backend",
    "layer": "it was not made by its class's own constructor",
    "pluggable_layer": "its class is none that this seam replaces by name",
    "model": "its model is of none of the classes that stand in the registry for "
    f"{', '.join(whole_model.ARCHITECTURES)}",
    "modular_kernel": "its method makes no modular kernel",
    "register_oot": "its method is not UnquantizedFusedMoEMethod",
}
NOT_MLA = {"get_attn_backend_cls", "platform"}
OWN_BACKEND = "has its own backend, which no seam here reaches"


def layers(worker: Any, installation: Installation) -> Iterator[Layer]:
    """Every attention and MoE layer of the worker's model, in the order vLLM built them."""
    base = importlib.import_module("vllm.model_executor.layers.attention_layer_base")
    if installation.shim is None:
        raise AssertionError("before_model() comes first")
    moe = installation.shim.moe_layer.value
    moe_class = _loaded(moe.held_by)
    ledger, adapters = installation.ledger, installation.adapters()
    for adapter in adapters.values():
        adapter.begin(worker.vllm_config)
    context = worker.vllm_config.compilation_config.static_forward_context
    if "attention" in adapters:
        installation.settle("attention", _backends(context.values(), adapters["attention"]))
    for name, built in context.items():
        if isinstance(built, base.AttentionLayerBase):
            over = adapters.get("attention")
            found = _attention(name, built, ledger, over)
            with installation.falls_back("attention"):
                found = _decided(found, over, built)
            yield found
        elif moe_class is not None and isinstance(built, moe_class):
            found = _moe(name, built, ledger, moe)
            with installation.falls_back("moe"):
                found = _decided_moe(found, adapters.get("moe"), built, moe)
            yield found


def _backends(built: Iterable[Any], adapter: Any) -> Counter[str]:
    """How many attention layers of the kind that a kernel is for run on which stock backend."""
    return Counter(
        each.attn_backend.get_name()
        for each in built
        if hasattr(each, "attn_backend")
        and hasattr(each, "impl")
        and layer.other_kind(each, adapter) is None
    )


def _decided(found: Layer, adapter: Any, built: Any) -> Layer:
    """A layer that a seam reached, once the kernel that is to run it said whether it takes it."""
    if adapter is None or not found.bound:
        return found
    try:
        adapter.decide(found.layer, built)
        adapter.check_measured(found.layer, found.over)
    except Refused as refusal:
        return Layer(found.op, found.layer, found.over, why_not=str(refusal))
    return found


def _decided_moe(found: Layer, adapter: Any, built: Any, where: MoeLayer) -> Layer:
    """The same of a MoE layer, whose kernel judges the weights as they lie."""
    if adapter is None or not found.bound:
        return found
    method = attrgetter(where.method)(built)
    path = where.method.rpartition(".")[0]
    holder = attrgetter(path)(built) if path else built
    shadow = modular_kernel.of(method)
    if shadow is None:
        raise AssertionError("a kernel is bound by the modular kernel alone")
    experts = method.moe_kernel.impl.fused_experts
    try:
        spec = adapter.decide(found.layer, experts, holder, shadow.spec)
        adapter.check_measured(found.layer, found.over)
    except Refused as refusal:
        return Layer(found.op, found.layer, found.over, why_not=str(refusal))
    shadow.spec = spec
    return found


def watch_graphs(worker: Any, installation: Installation) -> None:
    """Let the ledger tell a CUDA graph's capture, and count replays where a report is wanted."""
    if worker.device is None or worker.device.type != "cuda":
        return
    import torch

    ledger = installation.ledger
    ledger.capturing = torch.cuda.is_current_stream_capturing
    if installation.settings.report:
        replays = importlib.import_module("infera_shims.seams.replays").Replays(worker.device)
        ledger.on_capture, ledger.replays = replays.captured, replays.read
        ledger.before_first_step = replays.reset


def _attention(name: str, built: Any, ledger: Ledger, adapter: Any) -> Layer:
    choice = ledger.choices["attention"]
    if not hasattr(built, "attn_backend") or not hasattr(built, "impl"):
        return Layer("attention", name, type(built).__qualname__, why_not=OWN_BACKEND)
    over: str = built.attn_backend.get_name()
    shadow = layer.of(built.impl)
    if backends.is_ours(built.impl):
        seam = next(seam for seam in choice.seams if seam != "layer")
        other = owners.other(type(built.impl).forward)
        return Layer("attention", name, over, seam, choice.kernel, shared_with=other)
    if shadow:
        kernel, other = choice.kernel, shadowed.others(built.impl)
        return Layer("attention", name, over, shadow.seam, kernel, shared_with=other)
    if ("attention", name) in ledger.made:
        return Layer("attention", name, over, ledger.made["attention", name], choice.kernel)
    return Layer("attention", name, over, why_not=_why_not_attention(built, choice, adapter))


def _why_not_attention(built: Any, choice: Choice, adapter: Any) -> str:
    if choice.kernel is None:
        return str(choice.why_not)
    kind = layer.other_kind(built, adapter)
    if kind:
        return kind
    if "layer" in choice.seams or "model" in choice.seams:
        against = layer.reason_against(built)
        if against:
            return against
    if set(choice.seams) <= NOT_MLA and built.attn_backend.is_mla():
        return f"MLA: {_names(choice)} does not take it"
    return NOT_REACHED[choice.seams[-1]]


def _moe(name: str, built: Any, ledger: Ledger, where: MoeLayer) -> Layer:
    choice = ledger.choices["moe"]
    method = attrgetter(where.method)(built)
    if not hasattr(method, "moe_kernel"):
        over = type(method).__qualname__
        return Layer("moe", name, over, why_not="its method is none of stock vLLM's")
    kernel = method.moe_kernel
    # A kernel of a make that the contracts refused may have other parts.
    known = hasattr(kernel, "impl") and hasattr(kernel.impl, "fused_experts")
    over = type(kernel.impl.fused_experts if known else method).__qualname__
    if choice.kernel is None:
        return Layer("moe", name, over, why_not=choice.why_not)
    shadow = modular_kernel.of(method) if known else None
    if shadow:
        shadow.witness.layer = name
        other = shadowed.others(kernel.impl.fused_experts)
        return Layer("moe", name, over, modular_kernel.NAME, choice.kernel, shared_with=other)
    on_method = whole_model.of(method)
    if on_method:
        on_method.witness.layer = name
        other = shadowed.others(method)
        return Layer("moe", name, over, whole_model.NAME, choice.kernel, shared_with=other)
    if ("moe", name) in ledger.made:
        return Layer("moe", name, over, ledger.made["moe", name], choice.kernel)
    if replaced.is_ours(method):
        return Layer("moe", name, over, "register_oot", choice.kernel)
    if kernel is not None and choice.seams == [modular_kernel.NAME]:
        made = type(kernel.impl).__qualname__
        return Layer("moe", name, over, why_not=f"its kernel is {made}: it routes by itself")
    return Layer("moe", name, over, why_not=NOT_REACHED[choice.seams[-1]])


def _names(choice: Choice) -> str:
    return " and ".join(choice.seams)


def _loaded(symbol: str) -> Any:
    """The class of a symbol if its module was imported: a dense model never imports MoE's."""
    module, _, name = symbol.partition(":")
    return vars(sys.modules[module])[name] if module in sys.modules else None
