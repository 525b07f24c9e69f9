"""A hash of what a compiled graph depends on of us: nothing of a process goes in."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infera_compat import __version__

if TYPE_CHECKING:
    from infera_compat.kernels.kernel import Kernel
    from infera_compat.ledger import Choice

VARIABLE = "INFERA_COMPAT_FINGERPRINT"
"""Under this name it enters vLLM's compile key."""


def of(
    choices: Iterable[Choice],
    kernels: Mapping[str, Kernel[Any, Any, Any]],
    sources: Mapping[str, str],
) -> str:
    """Of our version, our source files, and what is bound; equal on all ranks.

    kernels, sources: by op, a bound kernel and the distribution that it is from.
    """
    bound = [
        (c.op, c.kernel, c.seams, _of_kernel(kernels.get(c.op), sources.get(c.op, "")))
        for c in choices
        if c.kernel
    ]
    return hashlib.sha256(f"{__version__} {bound} {_ours()}".encode()).hexdigest()[:16]


def _of_kernel(kernel: Kernel[Any, Any, Any] | None, source: str) -> str:
    """Of a kernel, which may be a third party's: its whole package."""
    if kernel is None:
        return ""
    package = type(kernel).__module__.partition(".")[0]
    return f"{source} {_of_package(package)}"


def _ours() -> str:
    return _of_package("infera_compat") + _of_package("infera_shims")


@cache
def _of_package(package: str) -> str:
    """A hash over the source files of a package, or of a module without one."""
    file = Path(str(importlib.import_module(package).__file__))
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    digest = hashlib.sha256()
    for each in files:
        digest.update(each.read_bytes())
    return digest.hexdigest()
