"""Which functions Triton compiled, and when: its own hook tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(names: list[str]) -> Iterator[None]:
    """Append the name of each function that Triton compiles meanwhile, in any thread.

    Does nothing where there is no Triton, or one that is older than its knobs (3.4).
    """
    runtime = _runtime()
    if runtime is None:
        yield
        return
    before = runtime.jit_post_compile_hook

    def note(**about: Any) -> Any:
        names.append(str(about["repr"]).partition("[")[0])
        return before(**about) if before is not None else None

    runtime.jit_post_compile_hook = note
    try:
        yield
    finally:
        runtime.jit_post_compile_hook = before


def watchable() -> bool:
    """Whether Triton is there and tells."""
    return _runtime() is not None


def interpreted() -> bool:
    """Whether Triton's functions are interpreted, on a CPU: nothing is compiled then."""
    runtime = _runtime()
    return runtime is not None and bool(runtime.interpret)


def _runtime() -> Any:
    try:
        from triton import knobs
    except ImportError:
        return None
    return knobs.runtime
