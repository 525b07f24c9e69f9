"""The layers that vLLM built, and for each what stands in it, or why nothing does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from infera_compat.ledger import Choice, Layer
from infera_shims.seams import backends, modular_kernel, register_oot

if TYPE_CHECKING:
    from infera_compat.install import Installation
    from infera_shims.shim import Shim


def layers(worker: Any, installation: Installation) -> Iterator[Layer]:
    """Every attention and MoE layer of the worker's model, in the order vLLM built them."""
    base = importlib.import_module("vllm.model_executor.layers.attention_layer_base")
    shim = installation.shim
    if shim is None:
        raise AssertionError("before_model() comes first")
    moe_class = _loaded(shim.moe_layer)
    choices = installation.ledger.choices
    context = worker.vllm_config.compilation_config.static_forward_context
    for name, layer in context.items():
        if isinstance(layer, base.AttentionLayerBase):
            yield _attention(name, layer, choices["attention"])
        elif moe_class is not None and isinstance(layer, moe_class):
            yield _moe(name, layer, choices["moe"], shim)


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


def _attention(name: str, layer: Any, choice: Choice) -> Layer:
    if not hasattr(layer, "attn_backend") or not hasattr(layer, "impl"):
        cls = type(layer).__qualname__
        return Layer(
            "attention", name, cls, why_not="has its own backend, which no seam here reaches"
        )
    over: str = layer.attn_backend.get_name()
    if backends.is_ours(layer.impl):
        return Layer("attention", name, over, choice.seam, choice.kernel)
    if choice.kernel is None:
        return Layer("attention", name, over, why_not=choice.why_not)
    if layer.attn_backend.is_mla():
        return Layer("attention", name, over, why_not="MLA: this seam does not take it")
    return Layer("attention", name, over, why_not=f"its backend is not by {choice.seam}")


def _moe(name: str, layer: Any, choice: Choice, shim: Shim) -> Layer:
    method = attrgetter(shim.moe_method)(layer)
    if not hasattr(method, "moe_kernel"):
        over = type(method).__qualname__
        return Layer("moe", name, over, why_not="its method is none of stock vLLM's")
    kernel = method.moe_kernel
    # A kernel of a make that the contracts refused may have other parts.
    known = hasattr(kernel, "impl") and hasattr(kernel.impl, "fused_experts")
    over = type(kernel.impl.fused_experts if known else method).__qualname__
    if choice.kernel is None:
        return Layer("moe", name, over, why_not=choice.why_not)
    if register_oot.is_ours(method) or modular_kernel.name_layer(method, name):
        return Layer("moe", name, over, choice.seam, choice.kernel)
    if kernel is None:
        return Layer("moe", name, over, why_not="its method makes no modular kernel")
    return Layer("moe", name, over, why_not=f"its kernel is {type(kernel.impl).__qualname__}")


def _loaded(symbol: str) -> Any:
    """The class of a symbol if its module was imported: a dense model never imports MoE's."""
    module, _, name = symbol.partition(":")
    return vars(sys.modules[module])[name] if module in sys.modules else None
