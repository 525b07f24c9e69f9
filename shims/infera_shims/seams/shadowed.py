"""An instance's method, shadowed by an object of ours over whatever stood there before."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from infera_compat.originals import Originals


class Shadow(Protocol):
    """An object to call in the place of a method; `stock` is what stood there."""

    stock: Any


def put(instance: Any, name: str, shadow: Shadow, originals: Originals) -> None:
    """Set `instance.name` to `shadow` until the originals are restored.

    The instance is not kept alive: a model that was let go must be free to go.
    """
    take_away = partial(_take_away, weakref.ref(instance), name, type(shadow))
    setattr(instance, name, shadow)
    originals.on_restore(take_away)


def _take_away(reference: weakref.ref[Any], name: str, kind: type[Shadow]) -> None:
    instance = reference()
    ours = None if instance is None else vars(instance).get(name)
    if not isinstance(ours, kind):
        return  # somebody else stands before ours by now
    delattr(instance, name)
    if getattr(instance, name) != ours.stock:  # it was an instance attribute of somebody else's
        setattr(instance, name, ours.stock)
