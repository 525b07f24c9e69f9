"""Who else stands in a place is told, whatever they put there."""

from __future__ import annotations

import functools
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from infera_shims.seams import owners


def module(name: str, source: str, **names: Any) -> Any:
    """A module of this name, its functions reading its globals."""
    made = ModuleType(name)
    vars(made).update(names)
    exec(source, vars(made))
    return made


STOCK = module(
    "vllm.layers",
    """
def forward(x):
    return x

class Layer:
    def forward(self):
        pass

    @classmethod
    def backend(cls):
        pass
""",
)
OURS = module("infera_shims.seams.x", "def forward(x):\n    return x")
THEIRS = module(
    "their_plugin",
    """
@functools.wraps(stock)
def wrapped(*args):
    return stock(*args)

def made():
    @functools.wraps(stock)
    def inner(*args):
        return stock(*args)
    return inner

class Layer:
    @functools.wraps(stock)
    def forward(self):
        pass

    @classmethod
    def backend(cls):
        pass

    def __call__(self):
        pass
""",
    stock=STOCK.forward,
    functools=functools,
)


@pytest.mark.parametrize(
    "place",
    [
        STOCK.forward,
        STOCK.Layer.forward,
        STOCK.Layer().forward,
        STOCK.Layer.backend,
        vars(STOCK.Layer)["backend"],
        functools.partial(STOCK.forward, 1),
        OURS.forward,
    ],
    ids=["function", "plain", "bound", "classmethod", "raw classmethod", "partial", "ours"],
)
def test_stock_vllm_and_we_are_nobody_else(place: Any) -> None:
    assert owners.other(place) is None


@pytest.mark.parametrize(
    "place",
    [
        THEIRS.wrapped,
        THEIRS.made(),
        THEIRS.Layer.forward,
        THEIRS.Layer().forward,
        THEIRS.Layer.backend,
        vars(THEIRS.Layer)["backend"],
        THEIRS.Layer(),
        functools.partial(THEIRS.wrapped, 1),
        functools.partial(functools.partial(THEIRS.Layer().forward)),
    ],
    ids=[
        "wrapped",
        "closure",
        "plain",
        "bound",
        "classmethod",
        "raw classmethod",
        "object",
        "partial",
        "partial twice",
    ],
)
def test_another_module_is_named_even_where_functools_wraps_hides_it(place: Any) -> None:
    assert owners.other(place) == "their_plugin"


@pytest.mark.parametrize(
    ("name", "stock"),
    [("vllm.v1.attention", True), ("vllm_ascend.attention", False), ("infera_shims", False)],
)
def test_only_vllms_own_classes_are_stock(name: str, stock: bool) -> None:
    assert owners.is_stock(type("Impl", (), {"__module__": name})) is stock


class Backend(Enum):
    FLASH_ATTN = "vllm.flash"
    TRITON_ATTN = "vllm.triton"


@pytest.mark.parametrize(
    ("registry", "told"),
    [
        ({"_ATTN_OVERRIDES": {}}, []),
        (
            {"_ATTN_OVERRIDES": {Backend.FLASH_ATTN: "theirs.Flash"}},
            ["backend FLASH_ATTN is overridden by theirs.Flash"],
        ),
        ({"_ATTN_OVERRIDES": {Backend.TRITON_ATTN: "infera_shims.seams.backends.X"}}, []),
        ({"_ATTN_OVERRIDES": ["another kind"]}, []),
        ({}, []),
    ],
    ids=["none", "theirs", "ours", "of another kind", "no such table"],
)
def test_a_stock_backend_that_another_overrides_is_told(
    registry: dict[str, Any], told: list[str]
) -> None:
    assert list(owners.overridden_backends(SimpleNamespace(**registry))) == told
