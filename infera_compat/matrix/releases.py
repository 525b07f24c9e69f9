"""The list of releases, matrix/releases.toml."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """All lines of the list, oldest release first."""
    # Python 3.10 has no tomllib; the environments that this project makes there have tomli.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    entries: dict[str, dict[str, Any]] = toml.loads(file.read_text("utf-8"))["release"]
    return tuple(Line(release, **entry) for release, entry in entries.items())


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
