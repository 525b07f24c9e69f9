"""What binding an op replaced, and how to put all of it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

MISSING = object()
"""Stands for what a class did not hold itself."""


class Originals:
    """The undo list of one op: binding it is whole or not at all.

    A method that a class merely inherited is deleted again, not written into the class: CUDA's
    platform classes inherit `get_attn_backend_cls` (vllm/platforms/cuda.py, every release).
    """

    def __init__(self) -> None:
        """Start with nothing replaced."""
        self._undo = ExitStack()

    def replace(self, owner: type, name: str, value: object) -> None:
        """Set `owner.name`, and remember what `vars(owner)` held, or that it held nothing.

        Where somebody put another thing there afterwards, restoring leaves it: it may stand on
        ours, so what is set here must hand over by itself once its op went back to stock.
        """
        before = vars(owner).get(name, MISSING)
        setattr(owner, name, value)
        self._undo.callback(_put_back, owner, name, value, before)

    def on_restore(self, action: Callable[[], object]) -> None:
        """Run `action` too when the originals are put back."""
        self._undo.callback(action)

    def restore(self) -> None:
        """Put everything back, last change first. Safe to call twice.

        One that can't be put back keeps none of the others; its error is raised at the end.
        """
        self._undo.close()


def _put_back(owner: type, name: str, ours: object, before: object) -> None:
    if vars(owner).get(name) is not ours:
        return
    if before is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
