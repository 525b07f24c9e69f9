"""Attention by `get_attn_backend_cls`, asked on the active platform's class.

Upstream: vllm/platforms/interface.py `Platform.get_attn_backend_cls` (same parameters in every
release) names the backend of a layer; vllm/v1/attention/selector.py imports what it names.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from infera_compat.errors import Refused
from infera_shims.seams import backends, owners, platform

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_shims.shim import Shim

METHOD = "get_attn_backend_cls"
REGISTRY = "vllm.v1.attention.backends.registry"


def bind(binding: Binding, shim: Shim) -> None:
    """Wrap the classmethod so that every non-MLA layer gets our subclass of its stock backend.

    Raises Refused where the platform's class has no such classmethod.
    """
    _wrap(type(importlib.import_module("vllm.platforms").current_platform), binding)


def bind_platform(binding: Binding, shim: Shim) -> None:
    """The same on InferaPlatform: it is our own class's method, and no class of vLLM is touched.

    Raises Refused where vLLM did not take InferaPlatform.
    """
    active = type(importlib.import_module("vllm.platforms").current_platform)
    if not platform.is_ours(active):
        reason = binding.platform_note or "vLLM never asked for it (VLLM_TARGET_DEVICE=cpu?)"
        raise Refused(f"InferaPlatform is not the active platform: {reason}")
    _wrap(active, binding)


def _wrap(active: type, binding: Binding) -> None:
    # Through the class, since CUDA's and ROCm's inherit it; __func__, since it binds `cls` itself.
    stock = getattr(active, METHOD)
    if not hasattr(stock, "__func__") or stock.__self__ is not active:
        raise Refused(f"{active.__qualname__}.{METHOD} is no classmethod of that class")
    binding.choice.notes.extend(_shared(stock))
    binding.originals.replace(active, METHOD, classmethod(_asking(stock.__func__, binding)))
    backends.open_book(binding)
    binding.originals.on_restore(backends.close_book)
    _forget_answers()
    binding.originals.on_restore(_forget_answers)


def _asking(stock: Any, binding: Binding) -> Any:
    @functools.wraps(stock)
    def get_attn_backend_cls(cls: type, *args: Any, **kwargs: Any) -> Any:
        path = stock(cls, *args, **kwargs)
        # What is no path is vLLM's own affair; and where the op went back to stock, somebody may
        # have wrapped this wrap.
        if not isinstance(path, str) or not path or binding.choice.kernel is None:
            return path
        config = kwargs["attn_selector_config"] if "attn_selector_config" in kwargs else args[1]
        return path if config.use_mla else backends.path_over(path)

    return get_attn_backend_cls


def _shared(stock: Any) -> list[str]:
    """Who else wrapped the classmethod, or registered over a stock backend."""
    other = owners.other(stock)
    notes = [f"{METHOD} is wrapped by {other} too, ours stands before it"] if other else []
    if REGISTRY in sys.modules:
        notes.extend(owners.overridden_backends(sys.modules[REGISTRY]))
    return notes


def _forget_answers() -> None:
    """Empty the selector's cache: a layer made from now on must get the new answer."""
    selector = sys.modules.get("vllm.v1.attention.selector")
    if selector is not None:
        selector._cached_get_attn_backend.cache_clear()
