"""The list of releases, matrix/releases.toml."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import infera_shims
from infera_compat.errors import CompatError


@dataclass(frozen=True)
class Line:
    """One release of the list.

    shim: the module written for it. torch: a pinned requirement. cpu: the CPU build, or None where
    the release has none: then `python` is run with the compiled operators of `operators`.
    """

    release: str
    shim: str
    torch: str
    cpu: str | None = None
    python: str | None = None
    operators: str | None = None

    @property
    def environment(self) -> str:
        """The name of its tox environment."""
        return f"vllm{self.release}"

    @property
    def label(self) -> str:
        """What runs, as it is to be called wherever a result of it is shown."""
        if self.operators is None:
            return str(self.cpu).replace("==", " ")
        return f"{self.release}'s Python with {self.operators.split('==')[1]}'s CPU operators"


def read(file: Path) -> tuple[Line, ...]:
    """All lines of the list, oldest release first; raises CompatError where one can't be meant."""
    # Python 3.10 has no tomllib; the environments that this project makes there have tomli.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        tables: dict[str, Any] = toml.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError is a ValueError
        raise _unmeant(file, str(error), "TOML") from error
    entries = tables.get("release")
    if not isinstance(entries, dict):
        found = ", ".join(f"[{name}]" for name in tables) or "nothing"
        raise _unmeant(file, found, "the table [release]")
    return tuple(_line(file, release, entry) for release, entry in entries.items())


def _line(file: Path, release: str, entry: Any) -> Line:
    known = [field.name for field in fields(Line) if field.name != "release"]
    shims = [shim.name for shim in infera_shims.order(None)]
    if not isinstance(entry, dict) or not all(isinstance(x, str) for x in entry.values()):
        raise _unmeant(file, f"{release}: {entry!r}", "a table of strings")
    if unknown := [name for name in entry if name not in known]:
        raise _unmeant(file, f"{release}: {', '.join(unknown)}", f"of {', '.join(known)} alone")
    if missing := [name for name in ("shim", "torch") if name not in entry]:
        raise _unmeant(file, f"{release}: no {', '.join(missing)}", "shim and torch in each line")
    if entry["shim"] not in shims:
        expected = f"one of {', '.join(shims)}"
        raise _unmeant(file, f"{release}: shim {entry['shim']!r}", expected)
    ways = {"cpu"}, {"python", "operators"}
    if set(entry) - {"shim", "torch"} not in ways:
        rest = ", ".join(name for name in entry if name not in ("shim", "torch")) or "neither"
        raise _unmeant(file, f"{release}: {rest}", "either cpu, or python and operators")
    return Line(release, **entry)


def _unmeant(file: Path, found: str, expected: str) -> CompatError:
    return CompatError(
        f"{file} is not the list of releases", found=found, expected=expected, do="Mend it."
    )


def chosen(lines: Iterable[Line], names: Iterable[str]) -> tuple[Line, ...]:
    """The lines of these releases, or all, in the list's order.

    Raises CompatError for a release that is not in the list.
    """
    lines, names = tuple(lines), tuple(names)
    known = [line.release for line in lines]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CompatError(
            "a release is not in the list",
            found=", ".join(unknown),
            expected=f"one of {', '.join(known)}",
            do="Mend --release, or add a line to matrix/releases.toml.",
        )
    return tuple(line for line in lines if not names or line.release in names)
