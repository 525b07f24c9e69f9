"""Who else stands where we bind: other plugins wrap, shadow and register in the same places."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

STOCK = "vllm."
OURS = "infera_"


def is_stock(cls: type) -> bool:
    """Whether a class is stock vLLM's own (`vllm_ascend` and its like are not)."""
    return cls.__module__.startswith(STOCK)


def other(place: Any) -> str | None:
    """The module of whoever put `place` (a function, a method, an object to call) there.

    None where that is stock vLLM or us. functools.wraps copies `__module__`, so a function is known
    by the module whose globals it reads.
    """
    function = place
    while isinstance(function, MethodType | classmethod | partial):
        function = function.func if isinstance(function, partial) else function.__func__
    if isinstance(function, FunctionType):
        module: str = function.__globals__.get("__name__", "?")
    else:
        module = type(function).__module__
    return None if module.startswith((STOCK, OURS)) else module


def overridden_backends(registry: Any) -> Iterator[str]:
    """What other plugins registered over stock attention backends, a phrase each.

    Upstream: vllm/v1/attention/backends/registry.py `register_backend`, every release.
    """
    overrides = vars(registry).get("_ATTN_OVERRIDES")
    if isinstance(overrides, dict):
        for member, path in overrides.items():
            if not str(path).startswith(OURS):
                yield f"backend {member.name} is overridden by {path}"
