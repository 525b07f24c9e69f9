"""InferaPlatform: the stock platform under our name, so that no class of vLLM is touched.

Upstream: vllm/platforms/__init__.py asks every `vllm.platform_plugins` entry point for the path of
a platform class; only one may answer. From 0.24 to 0.31 that happens inside a half-imported vllm,
where `vllm.platforms` and the platform modules are all that can be imported.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "vllm.platform_plugins"
OURS = "infera_compat"
NAME = "InferaPlatform"

log = logging.getLogger("vllm.infera_compat")


def choose() -> tuple[str | None, str | None]:
    """InferaPlatform's path, or None and the reason why the stock platform is left alone."""
    others = [entry.name for entry in _allowed_others() if _asked(partial(_answer, entry))]
    if others:
        return None, f"platform plugin {', '.join(others)} is active, and vLLM allows one"
    if _stock_path() is None:
        return None, "no single stock platform was detected"
    return f"{__name__}.{NAME}", None


def is_ours(platform: type) -> bool:
    """Whether a platform class is InferaPlatform."""
    return any(base.__module__ == __name__ for base in platform.__mro__)


def __getattr__(name: str) -> Any:
    """Make InferaPlatform when vLLM imports it: a bare subclass, `_enum` and all inherited."""
    path = _stock_path() if name == NAME else None
    if path is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, cls = path.rpartition(".")
    stock = getattr(importlib.import_module(module), cls)
    globals()[NAME] = platform = type(
        NAME, (stock,), {"__module__": __name__, "__doc__": stock.__doc__}
    )
    return platform


def _stock_path() -> str | None:
    """The one builtin platform that detects itself."""
    try:
        detectors = importlib.import_module("vllm.platforms").builtin_platform_plugins
    except ImportError as error:
        log.debug("vllm.platforms can't be imported: %s", error)
        return None
    found = [path for path in map(_asked, detectors.values()) if path is not None]
    return found[0] if len(found) == 1 else None


def _allowed_others() -> list[EntryPoint]:
    allowed = os.environ["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in os.environ else None
    return [
        entry
        for entry in entry_points(group=GROUP)
        if entry.name != OURS and (allowed is None or entry.name in allowed)
    ]


def _answer(entry: EntryPoint) -> str | None:
    path: str | None = entry.load()()
    return path


def _asked(detect: Callable[[], str | None]) -> str | None:
    """What a detector answers: a path or None; vLLM takes an error as no, and so do we."""
    try:
        return detect()
    except Exception as error:  # noqa: BLE001 (whatever a detector raises means no)
        log.debug("platform detector %s does not answer: %s", detect, error)
        return None
