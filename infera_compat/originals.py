"""What binding an op replaced, and how to put all of it back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack


class Originals:
    """The undo list of one op: binding it is whole or not at all.

    A method that a class merely inherited is deleted again, not written into the class: CUDA's
    platform classes inherit `get_attn_backend_cls` (vllm/platforms/cuda.py, every release).
    """

    def __init__(self) -> None:
        """Start with nothing replaced."""
        self._undo = ExitStack()

    def replace(self, owner: type, name: str, value: object) -> None:
        """Set `owner.name`, and remember what `vars(owner)` held, or that it held nothing."""
        own = vars(owner)
        had, before = name in own, own.get(name)
        setattr(owner, name, value)
        if had:
            self._undo.callback(setattr, owner, name, before)
        else:
            self._undo.callback(delattr, owner, name)

    def on_restore(self, action: Callable[[], object]) -> None:
        """Run `action` too when the originals are put back."""
        self._undo.callback(action)

    def restore(self) -> None:
        """Put everything back, last change first. Safe to call twice.

        One that can't be put back keeps none of the others; its error is raised at the end.
        """
        self._undo.close()
