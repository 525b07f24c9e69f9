"""An instance's method, shadowed by an object of ours over whatever stood there before."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from infera_shims.seams import owners

if TYPE_CHECKING:
    from infera_compat.originals import Originals


class Shadow(Protocol):
    """An object to call in the place of a method; `stock` is what stood there."""

    stock: Any


S = TypeVar("S", bound=Shadow)

PLACES = "infera_shadows"
"""The attribute of an instance that tells where ours stand on it, under another plugin's too."""


def put(instance: Any, name: str, shadow: Shadow, originals: Originals) -> None:
    """Set `instance.name` to `shadow` until the originals are restored.

    The instance is not kept alive: a model that was let go must be free to go.
    """
    take_away = partial(_take_away, weakref.ref(instance), name)
    setattr(instance, name, shadow)
    setattr(instance, PLACES, {**_places(instance), name: shadow})
    originals.on_restore(take_away)


def on(instance: Any, kind: type[S]) -> S | None:
    """Our shadow of this kind on an instance, under another plugin's too; None if there is none."""
    return next((x for x in _places(instance).values() if isinstance(x, kind)), None)


def others(instance: Any) -> str | None:
    """Who else shadows what ours shadows on an instance, before it or on top of it."""
    found = {}
    for name, ours in _places(instance).items():
        for place in (ours.stock, vars(instance).get(name)):
            found[owners.other(place)] = True
    return ", ".join(name for name in found if name) or None


def _places(instance: Any) -> dict[str, Shadow]:
    places: dict[str, Shadow] = vars(instance).get(PLACES, {})
    return places


def _take_away(reference: weakref.ref[Any], name: str) -> None:
    instance = reference()
    if instance is None:
        return
    places = _places(instance)
    ours = places.pop(name, None)
    if not places and PLACES in vars(instance):
        delattr(instance, PLACES)
    if ours is None or vars(instance).get(name) is not ours:
        return  # somebody else stands before ours by now
    delattr(instance, name)
    if getattr(instance, name) != ours.stock:  # it was an instance attribute of somebody else's
        setattr(instance, name, ours.stock)
