"""matrix/results/<release>.json: what was run of a release, and what it proved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from infera_compat.matrix import files, gpu
from infera_compat.matrix.cells import NOT_RUN, STATUSES, Cell, of_way, worst
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.environments import Wheel
from infera_compat.matrix.records import Record
from infera_compat.matrix.releases import Line
from infera_compat.matrix.ways import COMPILED, MODELS, WAYS, Way
from infera_compat.settings import SEAMS

Records = Mapping[Way, Record]

TOLD = ("label", "commit", "dirty", "date", "python", "torch", "cpu", "contracts", "not_run")
"""The parts of a result that the tables are made of, beside its cells."""


def result(
    line: Line, wheel: Wheel, records: Records, obstacle: str | None = None
) -> dict[str, Any]:
    """The whole result of a release.

    obstacle: why ways are missing in `records`, where something kept them from running.
    """
    ran = [record.results for record in records.values() if record.results is not None]
    facts = ran[0] if ran else {}
    reports = [
        x for run in ran for model in run["models"].values() for x in model.get("reports", ())
    ]
    contracts = reports[0]["contracts"] if reports else None
    return {
        "release": line.release,
        "label": line.label,
        "shim": reports[0]["shim"] if reports else line.shim,
        "contracts": contracts,
        "commit": wheel.commit,
        "dirty": wheel.dirty,
        "source": wheel.source,
        "date": max((record.date for record in records.values()), default=None),
        "python": facts.get("python"),
        "torch": facts.get("torch"),
        "cpu": _cpu(),
        "ways": [
            {
                "name": way.name,
                "switches": way.switches,
                "models": [model.name for model in way.models],
                "seconds": record.seconds,
                "error": record.error,
            }
            for way, record in records.items()
        ],
        "cells": [asdict(cell) for cell in cells(records, obstacle)],
        "not_run": not_run(records, obstacle),
    }


def cells(records: Records, obstacle: str | None = None) -> list[Cell]:
    """The cells of all ways; those of a way that did not run say so."""
    missing = obstacle or "the matrix was stopped before it"
    stock: dict[str, Mapping[str, Any] | str] = {}
    found: list[Cell] = []
    for way in WAYS:
        record = records.get(way)
        if way.off:
            stock[way.mode] = record.outcome if record else missing
        elif record is not None:
            found += of_way(way, stock[way.mode], record.outcome)
        else:
            found += [
                Cell(op, way.seam(op), model.name, way.mode, NOT_RUN, missing)
                for model in way.models
                for op in model.ops
            ]
    return worst(found)


def not_run(records: Records, obstacle: str | None = None) -> list[dict[str, str]]:
    """What of this release was not run on a CPU, and why."""
    left_out = []
    if obstacle is not None:
        left_out.append({"what": "whatever is missing here", "why": obstacle})
    for way, record in records.items():
        if way.off and record.results is not None:
            left_out += [
                {"what": f"{name}, {way.mode}", "why": f"stock fails here: {model['error']}"}
                for name, model in record.results["models"].items()
                if "error" in model
            ]
    compiled = [way for way in WAYS if way.mode == COMPILED]
    models = {model for way in compiled for model in way.models}
    left_out.append(
        {
            "what": f"{', '.join(x.name for x in MODELS if x not in models)}, {COMPILED}",
            "why": "compiled, the MoE model alone is run: each takes minutes",
        }
    )
    for op, seams in SEAMS.items():
        asked = {way.seam(op) for way in compiled if not way.off}
        rest = [seam for seam in seams if seam not in asked]
        left_out.append(
            {
                "what": f"{op} by {', '.join(rest)} when asked for by name, {COMPILED}",
                "why": f"compiled, {', '.join(sorted(asked))} are asked for: each takes minutes",
            }
        )
    return left_out


def write(checkout: Checkout, release: str, body: Mapping[str, Any]) -> Path:
    """Write a result, and keep what another machine measured of the release.

    Raises CompatError where that can't be read: it would be lost.
    """
    file = checkout.results / f"{release}.json"
    files.put_json(file, {**body, **measured(checkout, release)})
    return file


def measured(checkout: Checkout, release: str) -> dict[str, Any]:
    """What another machine measured of a release; raises CompatError where that can't be read."""
    file = checkout.results / f"{release}.json"
    before = files.load(file) if file.is_file() else {}
    return {name: before[name] for name in gpu.PARTS if name in before}


def read(checkout: Checkout, release: str) -> dict[str, Any] | None:
    """The recorded result of a release, or None; raises CompatError where it is not whole."""
    file = checkout.results / f"{release}.json"
    if not file.is_file():
        return None
    body = files.load(file)
    missing = [name for name in ("cells", *TOLD) if name not in body]
    if missing:
        raise files.damaged(file, f"no {', '.join(missing)}", "the result of a release")
    try:
        unknown = {cell.status for cell in recorded_cells(body)} - set(STATUSES)
    except (TypeError, AttributeError) as error:
        raise files.damaged(file, str(error), "cells, each with all its parts") from error
    if unknown:
        raise files.damaged(file, f"a cell is {unknown}", f"one of {', '.join(STATUSES)}")
    return body


def recorded_cells(body: Mapping[str, Any] | None) -> list[Cell]:
    """The cells of a recorded result, those of other machines too."""
    if body is None:
        return []
    entries: Sequence[Mapping[str, Any]] = [*body["cells"], *body.get(gpu.CELLS, ())]
    return [_cell(entry) for entry in entries]


def _cell(entry: Mapping[str, Any]) -> Cell:
    known = {field.name for field in fields(Cell)}
    values = {name: value for name, value in entry.items() if name in known}
    return Cell(**{**values, "by": _tuple(values.get("by")), "over": _tuple(values.get("over"))})


def _tuple(values: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(values or ())


def _cpu() -> str | None:
    """The processor's name, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return None
    for text in info.read_text("utf-8").splitlines():
        name, _, value = text.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None
