"""What a kernel's distribution recorded of it: that verify held, and that bench ran beside stock.

Records are JSON files as `infera-compat verify` and `infera-compat bench` write them. A third
party's lie in `records/` beside its kernel's module; ours are those of matrix/results, in a wheel
in `recorded/results` of this package. A record speaks for one GPU and for one state of the sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import infera_compat
from infera_compat.errors import CompatError
from infera_compat.kernels import sources
from infera_compat.kernels.kernel import OPS
from infera_compat.kernels.table import is_time, slug

FOLDER = "records"
SOURCES = "sources"
"""Of a record: by kernel, the digest of the sources that ran (sources.digest)."""

PASS = "pass"
HARMLESS = (PASS, "not run")
"""What a check of verify may have come to; anything else is a failure."""

ENGINE = "engine"
"""Of a record's name: whole engines, which are of both ops and hold no kernel's times."""

VERIFY = ("kernel", "gpu", "outcomes", "passed")
BENCH = ("gpu", "release", "cells")
"""The fields that are read of each."""


@dataclass(frozen=True)
class Records:
    """The records of one kernel on one GPU that speak for sources of one digest.

    folder: where they lie. kernel, op: its name and what it is for. gpu: the device's name.
    digest: of its sources. line_of: the line of releases (a shim's name) that a release belongs to.
    """

    folder: Path
    kernel: str
    op: str
    gpu: str
    digest: str
    line_of: Callable[[str], str]

    def unverified(self) -> str | None:
        """Why no record of verify speaks for the kernel here, or None where one does.

        Raises CompatError for a file that is no record.
        """
        found = [
            body
            for file in sorted(self.folder.glob(f"verify-{self.kernel}-*.json"))
            if (body := _load(file, VERIFY))["kernel"] == self.kernel and self._here(body)
        ]
        if not found:
            return f"no record of verify on {self.gpu}"
        of_these = [body for body in found if self._same(body)]
        if not of_these:
            return f"verify on {self.gpu} ran other sources than those installed"
        statuses = [_statuses(body) for body in of_these]
        held = all(body["passed"] is True for body in of_these)
        if not held or any(each - set(HARMLESS) for each in statuses):
            return f"verify on {self.gpu} did not hold"
        if not all(PASS in each for each in statuses):
            return f"verify on {self.gpu} has run nothing"
        return None

    def benched(self, line: str, baselines: frozenset[str]) -> frozenset[str] | str:
        """Which of `baselines` bench measured the kernel against in this line; of none, why.

        A cell that names no baseline (of experts, whose stock code vLLM chooses) is of each. What
        was recorded of another op is not read: a broken file of it is nothing to this kernel.
        Raises CompatError for a file that is no record.
        """
        found: set[str] = set()
        others = "no record of bench"
        for file in sorted(self.folder.glob("bench-*.json")):
            if _is_of_another(file, self.op):
                continue
            body = _load(file, BENCH)
            cells = [cell for cell in body["cells"] if _measured(cell, body, self.kernel)]
            if not cells or not self._here(body):
                continue
            if self.line_of(str(body["release"])) != line:
                continue
            if not self._same(body):
                others = "bench ran other sources than those installed"
                continue
            for cell in cells:
                found |= {cell["baseline"]} & baselines if "baseline" in cell else baselines
        return frozenset(found) or f"{others} on {self.gpu} with vLLM's line {line}"

    def _here(self, body: Mapping[str, Any]) -> bool:
        return isinstance(body["gpu"], str) and slug(body["gpu"]) == slug(self.gpu)

    def _same(self, body: Mapping[str, Any]) -> bool:
        told = body.get(SOURCES)
        return isinstance(told, dict) and told.get(self.kernel) == self.digest


def folder_of(module: str, ours: bool) -> Path:
    """Where the records of a kernel lie. module: its own. ours: of this distribution."""
    if not ours:
        return sources.folder(module) / FOLDER
    package = Path(str(infera_compat.__file__)).parent
    checkout = package.parent / "matrix" / "results"
    return checkout if checkout.is_dir() else package / "recorded" / "results"


def _load(file: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    try:
        if not file.is_file():  # a pipe has no end
            raise ValueError("no regular file")
        body = json.loads(file.read_bytes())
        if not isinstance(body, dict) or (missing := [x for x in needed if x not in body]):
            raise ValueError(f"no {', '.join(missing)}" if isinstance(body, dict) else "no object")
        for name in ("cells", "outcomes"):
            if name in needed and not (
                isinstance(body[name], list) and all(isinstance(x, dict) for x in body[name])
            ):
                raise ValueError(f"{name} is no list of objects")
    except (OSError, ValueError, RecursionError) as error:
        raise CompatError(
            f"{file} is no record",
            found=f"{type(error).__name__}: {error}"[:300],
            expected=f"a JSON object with {', '.join(needed)}",
            do="Run infera-compat verify or bench again, or take the file away.",
        ) from error
    return body


def _is_of_another(file: Path, op: str) -> bool:
    """Whether a bench record's name says another op: bench-<what>-<gpu>-<release>.json."""
    what = file.stem.split("-")[1]
    return what == ENGINE or (what in OPS and OPS[what] != OPS[op])


def _statuses(body: Mapping[str, Any]) -> set[str]:
    return {str(outcome.get("status")) for outcome in body["outcomes"]}


def _measured(cell: Mapping[str, Any], body: Mapping[str, Any], kernel: str) -> bool:
    """Whether a cell is the kernel's, with stock's time and its own beside each other."""
    named = cell.get("kernel", body.get("kernel"))
    return named == kernel and all(is_time(cell.get(side)) for side in ("stock_us", "ours_us"))
