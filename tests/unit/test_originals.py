from __future__ import annotations

import contextlib

import pytest

from infera_compat.originals import Originals


class Base:
    @classmethod
    def answer(cls) -> str:
        return cls.__name__


class Owns(Base):
    @classmethod
    def answer(cls) -> str:
        return f"own {cls.__name__}"


class Inherits(Base):
    pass


@classmethod  # type: ignore[misc]
def ours(cls: type) -> str:
    return f"ours {cls.__name__}"


@pytest.mark.parametrize("owner", [Owns, Inherits, Base])
def test_the_class_is_as_it_was(owner: type[Base]) -> None:
    before, answered = dict(vars(owner)), owner.answer()
    originals = Originals()
    originals.replace(owner, "answer", ours)
    assert owner.answer() == f"ours {owner.__name__}"
    originals.restore()
    assert dict(vars(owner)) == before
    assert owner.answer() == answered


def test_what_was_inherited_follows_its_class_again() -> None:
    originals = Originals()
    originals.replace(Inherits, "answer", ours)
    originals.restore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Base, "answer", classmethod(lambda cls: "another plugin's"))
        assert Inherits.answer() == "another plugin's"


@pytest.mark.parametrize("owner", [Owns, Inherits])
def test_replaced_twice_and_restored_twice(owner: type[Base]) -> None:
    before = dict(vars(owner))
    originals = Originals()
    originals.replace(owner, "answer", ours)
    originals.replace(owner, "answer", classmethod(lambda cls: "again"))
    originals.restore()
    originals.restore()
    assert dict(vars(owner)) == before


def test_a_second_restore_takes_back_nothing_of_what_came_after() -> None:
    originals = Originals()
    originals.replace(Inherits, "answer", ours)
    originals.restore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inherits, "answer", classmethod(lambda cls: "later"))
        originals.restore()
        assert Inherits.answer() == "later"


def test_actions_run_in_the_reverse_order_and_once() -> None:
    ran: list[str] = []
    originals = Originals()
    for name in ("first", "second"):
        originals.on_restore(lambda name=name: ran.append(name))  # type: ignore[misc]
    originals.restore()
    originals.restore()
    assert ran == ["second", "first"]


def test_one_original_that_cannot_be_put_back_keeps_none_of_the_others() -> None:
    first, second = type("First", (Owns,), {}), type("Second", (Owns,), {})
    originals = Originals()
    originals.replace(first, "answer", ours)
    originals.replace(second, "answer", ours)
    del second.answer  # type: ignore[attr-defined]
    with contextlib.suppress(AttributeError):
        originals.restore()
    assert "answer" not in vars(first)


@pytest.mark.parametrize("bases", [(Base,), ()], ids=["inherited", "absent"])
def test_what_could_not_be_replaced_is_not_put_back(bases: tuple[type, ...]) -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise TypeError("sealed")

    owner = Sealed("Owner", bases, {})
    originals = Originals()
    with pytest.raises(TypeError):
        originals.replace(owner, "answer", ours)
    originals.restore()


def test_what_another_set_over_ours_stays() -> None:
    class Owner:
        def method(self) -> str:
            return "stock"

    originals = Originals()
    originals.replace(Owner, "method", lambda self: "ours")
    Owner.method = lambda self: "theirs"  # type: ignore[method-assign]
    originals.restore()
    assert Owner().method() == "theirs"
