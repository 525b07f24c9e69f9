"""What the author of a kernel adds to its plan: docs/plans/<name>.toml, beside the page."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from infera_compat.errors import CompatError


@dataclass(frozen=True)
class Target:
    """A ratio to stock that the kernel is to reach: the geometric mean over some cells.

    what: in words. ratio: stock's time by the kernel's, at least. The rest says which cells are
    meant, None being all: phase, mode, baseline as a cell has them; batch_min and batch_max.
    """

    what: str
    ratio: float
    phase: str | None = None
    mode: str | None = None
    baseline: str | None = None
    batch_min: int | None = None
    batch_max: int | None = None


@dataclass(frozen=True)
class Risk:
    """A risk and what is done about it. name: a risk's of the page, where it speaks of that one."""

    name: str
    what: str
    mitigation: str


@dataclass(frozen=True)
class Tried:
    """A thing that was tried on a GPU. predicted: said before. found: measured, and on what."""

    what: str
    predicted: str
    found: str


@dataclass(frozen=True)
class Author:
    """The prose of a plan; what was not written is None or empty.

    tolerance: why the error that verify allows is right. justification: why this kernel, seen
    against FlashAttention 3 and stock's own. plug_in_point: what is to be said of the seam.
    """

    tolerance: str | None = None
    justification: str | None = None
    plug_in_point: str | None = None
    out_of_scope: tuple[str, ...] = ()
    risks: tuple[Risk, ...] = ()
    targets: tuple[Target, ...] = ()
    tried: tuple[Tried, ...] = ()


TEXTS = ("tolerance", "justification", "plug_in_point")
LISTS: Mapping[str, str] = {
    "out_of_scope": "out_of_scope",
    "risk": "risks",
    "target": "targets",
    "tried": "tried",
}
"""The file's lists and tables, and the field that each fills."""

TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str,),
    "float": (int, float),
    "int | None": (int,),
}
T = TypeVar("T")


def read(file: Path) -> Author:
    """The author's part, empty without a file; raises CompatError for what can't be meant."""
    if not file.is_file():
        return Author()
    # Python 3.10 has no tomllib; the environments that this project makes there have tomli.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        given: dict[str, Any] = toml.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError is a ValueError
        raise _unmeant(file, str(error), "TOML") from error
    known = (*TEXTS, *LISTS)
    if unknown := [name for name in given if name not in known]:
        raise _unmeant(file, ", ".join(unknown), f"of {', '.join(known)} alone")
    for name in TEXTS:
        if name in given and not _is_text(given[name]):
            raise _unmeant(file, f"{name} = {given[name]!r}", f"{name}: a text that is not empty")
    out_of_scope = _list(file, given, "out_of_scope")
    if bad := [entry for entry in out_of_scope if not _is_text(entry)]:
        raise _unmeant(file, f"out_of_scope: {bad[0]!r}", "texts that are not empty")
    return Author(
        **{name: " ".join(given[name].split()) for name in TEXTS if name in given},
        out_of_scope=tuple(out_of_scope),
        risks=tuple(_made(file, "risk", Risk, x) for x in _list(file, given, "risk")),
        targets=tuple(_made(file, "target", Target, x) for x in _list(file, given, "target")),
        tried=tuple(_made(file, "tried", Tried, x) for x in _list(file, given, "tried")),
    )


def _list(file: Path, given: Mapping[str, Any], name: str) -> list[Any]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise _unmeant(file, f"{name} = {found!r}", f"a list of {name}")
    return found


def _made(file: Path, name: str, make: Callable[..., T], entry: Any) -> T:
    """One table of the file, as what it means."""
    known = {field.name: field for field in fields(make)}  # type: ignore[arg-type]
    if not isinstance(entry, dict):
        raise _unmeant(file, f"{name}: {entry!r}", f"a table [[{name}]]")
    if unknown := [key for key in entry if key not in known]:
        raise _unmeant(file, f"[[{name}]] {', '.join(unknown)}", f"of {', '.join(known)} alone")
    needed = [field.name for field in known.values() if field.default is MISSING]
    if missing := [key for key in needed if key not in entry]:
        raise _unmeant(file, f"[[{name}]] without {', '.join(missing)}", f"{', '.join(needed)}")
    for key, value in entry.items():
        types = TYPES[str(known[key].type)]
        if isinstance(value, bool) or not isinstance(value, types) or value == "":
            expected = f"{key}: {known[key].type}"
            raise _unmeant(file, f"[[{name}]] {key} = {value!r}", expected)
    return make(**entry)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _unmeant(file: Path, found: str, expected: str) -> CompatError:
    return CompatError(
        f"{file} is not what an author adds to a plan",
        found=found,
        expected=expected,
        do="Mend it, or remove it: the plan then says what it lacks.",
    )
