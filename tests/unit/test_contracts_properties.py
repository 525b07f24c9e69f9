"""Whatever is changed in a definition that a shim needs, the comparison sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import infera_shims
from infera_compat.contracts import ANY, Need, judge
from infera_compat.definitions import Source

NEEDS = [need for shim in infera_shims.order(None) for need in shim.needs]
WITH_CALL = [need for need in NEEDS if need.parameters]
KINDS = ("class", "function", "method", "classmethod", "staticmethod", "property", "variable")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


def source(need: Need) -> str:
    """A module that has what the need asks for, and no more."""
    *outer, last = need.symbol.partition(":")[2].split(".")
    given = dict(need.defaults)
    fixed = [name for name in need.parameters or () if name != ANY]
    signature = ", ".join(f"{name}={given[name]}" if name in given else name for name in fixed)
    marks = [f"@register({need.decorator!r})"] if need.decorator else []
    if need.kind in ("classmethod", "staticmethod", "property"):
        marks.append(f"@{need.kind}")
    lines = {
        "class": [*marks, f"class {last}({', '.join(need.bases)}): ..."],
        "variable": [f"{last}: {need.type or 'object'} = None"],
        "attribute": ["def __init__(self):", f"    self.{last} = None"],
    }.get(need.kind, [*marks, f"def {last}({signature}): ..."])
    for name in reversed(outer):
        lines = [f"class {name}:", *(f"    {line}" for line in lines)]
    return "\n".join(lines) + "\n"


def moved(folder: Path, need: Need, written: Need) -> bool:
    file = folder.joinpath(*need.module.split(".")[1:]).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source(written), "utf-8")
    try:
        return bool(judge(Source(folder), [need], {}).moved)
    finally:
        file.unlink()


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.symbol)
def test_what_is_written_as_needed_holds(folder: Path, need: Need) -> None:
    assert not moved(folder, need, need)


@given(need=st.sampled_from(WITH_CALL), data=st.data())
def test_a_renamed_parameter_is_seen(folder: Path, need: Need, data: st.DataObject) -> None:
    names = list(need.parameters or ())
    index = data.draw(st.integers(0, len(names) - 1))
    assume(names[index] != ANY)
    names[index] += "_"
    assert moved(folder, need, replace(need, parameters=tuple(names)))


@given(need=st.sampled_from(WITH_CALL), data=st.data())
def test_any_other_order_is_seen(folder: Path, need: Need, data: st.DataObject) -> None:
    fixed = [name for name in need.parameters or () if name != ANY]
    shuffled = data.draw(st.permutations(fixed))
    assume(shuffled != fixed)
    assert moved(folder, need, replace(need, parameters=tuple(shuffled)))


@given(need=st.sampled_from(WITH_CALL), data=st.data())
def test_a_parameter_more_or_fewer_is_seen(folder: Path, need: Need, data: st.DataObject) -> None:
    names = [name for name in need.parameters or () if name != ANY]
    index = data.draw(st.integers(0, len(names) - 1))
    fewer, more = names[:index] + names[index + 1 :], [*names[:index], "new", *names[index:]]
    for changed in (fewer, more):
        assert moved(folder, need, replace(need, parameters=tuple(changed)))


@given(need=st.sampled_from(NEEDS), kind=st.sampled_from(KINDS))
def test_another_kind_is_seen(folder: Path, need: Need, kind: str) -> None:
    inside = "." in need.symbol.partition(":")[2]
    assume(kind != need.kind and kind != ("function" if inside else "method"))
    assume(inside or kind not in ("classmethod", "staticmethod", "property"))
    assert moved(folder, need, replace(need, kind=kind))


@given(
    need=st.sampled_from([need for need in NEEDS if need.decorator]),
    name=st.text("ab_", max_size=5),
)
def test_another_registered_name_is_seen(folder: Path, need: Need, name: str) -> None:
    assert moved(folder, need, replace(need, decorator=name or None))


@given(need=st.sampled_from([need for need in NEEDS if need.bases]))
def test_a_base_that_is_gone_is_seen(folder: Path, need: Need) -> None:
    assert moved(folder, need, replace(need, bases=need.bases[1:]))


@given(need=st.sampled_from([need for need in NEEDS if need.type]))
def test_another_type_is_seen(folder: Path, need: Need) -> None:
    assert moved(folder, need, replace(need, type="frozenset"))


@given(need=st.sampled_from([need for need in NEEDS if need.defaults]), data=st.data())
def test_another_default_is_seen(folder: Path, need: Need, data: st.DataObject) -> None:
    names = [name for name, _ in need.defaults]
    changed = data.draw(st.sampled_from(names))
    defaults = tuple((n, "0" if n == changed else value) for n, value in need.defaults)
    assert moved(folder, need, replace(need, defaults=defaults))
