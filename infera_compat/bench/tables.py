"""A kernel's preference table, made from a record: tables/<kernel>-<gpu>.json beside its module.

A table knows no lengths and no phases, so a row of it is the worst cell of its key: the one with
the smallest ratio. Where that one is faster by a margin, every other is. Decoding counts as an
engine runs it, in a graph; prefill runs outside of graphs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infera_compat.bench import record
from infera_compat.bench.cells import COLD, DECODE, EAGER, GRAPH
from infera_compat.bench.goals import measured
from infera_compat.errors import CompatError
from infera_compat.kernels import kernel as kernels
from infera_compat.kernels import registry
from infera_compat.kernels.table import BASELINE, FOLDER, KERNEL, KEYS, STOCK, slug
from infera_compat.matrix import files

Cell = Mapping[str, Any]

OPS: Mapping[str, str] = {
    record.ATTENTION: kernels.ATTENTION,
    record.EXPERTS: kernels.EXPERTS,
}
NAMES: Mapping[str, tuple[str, ...]] = {
    record.ATTENTION: ("B", "heads", "kv_heads", "head_size", "block"),
    record.EXPERTS: ("M", "E", "k", "K", "N"),
}
"""By kind: a cell's names of what a table's key has, in its order."""


def _attention_counts(cell: Cell) -> bool:
    wanted = GRAPH if cell["phase"] == DECODE else EAGER
    return bool(cell["cache"] == COLD and cell["mode"] == wanted)


def _experts_count(cell: Cell) -> bool:
    return bool(cell["mode"] == GRAPH)


COUNTS: Mapping[str, Callable[[Cell], bool]] = {
    record.ATTENTION: _attention_counts,
    record.EXPERTS: _experts_count,
}
"""By kind: which cells a table is made from."""


def table(body: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    """The table of a kernel, from a record.

    Raises CompatError where the record has no cell of it that counts.
    """
    kind = body["kind"]
    cells = [cell for cell in body["cells"] if cell["kernel"] == kernel and COUNTS[kind](cell)]
    if not cells:
        raise CompatError(
            f"no table of {kernel} can be made",
            found=f"no cell of it in the record, which has {_several(body['cells'])}",
            expected="cells in graphs and with a cold cache",
            do=f"Run infera-compat bench {kind} --kernel {kernel}.",
        )
    return {
        "kernel": kernel,
        "gpu": body["gpu"],
        "measured": {
            "release": str(body["release"]),
            "commit": str(body["commit"]),
            "date": str(body["date"]),
        },
        "cells": list(_rows(kind, cells)),
    }


def write(body: Mapping[str, Any], kernel: str, folder: Path) -> Path:
    """Write a kernel's table into `folder`, under the name by which it is found; returns where."""
    file = folder / f"{kernel}-{slug(str(body['gpu']))}.json"
    made = table(body, kernel)
    with files.writing("the table", file, "--folder"):
        files.put_json(file, made)
    return file


def beside(kernel: str) -> Path:
    """The folder of tables beside a kernel's module; imports none of it.

    Raises CompatError where no such kernel is installed.
    """
    found = registry.find()
    module = found.entries[kernel].value.partition(":")[0] if kernel in found.entries else ""
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        raise CompatError(
            f"where {kernel} lies is not known",
            found=f"kernels {', '.join(found.names())}",
            expected="one that is installed",
            do="Install it, or give --folder.",
        )
    return Path(spec.origin).parent / FOLDER


def _rows(kind: str, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """A row a key, in the order of keys."""
    names, keys = NAMES[kind], KEYS[OPS[kind]]
    worst: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        key = (str(cell[BASELINE]), *(int(cell[name]) for name in names))
        if key not in worst or measured(cell) < measured(worst[key]):
            worst[key] = cell
    # A layer's rows stand together: the bucket, which comes after the baseline, is looked at last.
    for key in sorted(worst, key=lambda found: (found[0], found[2:], found[1])):
        cell = worst[key]
        row: dict[str, Any] = dict(zip((BASELINE, *keys), key, strict=True))
        yield {**row, STOCK: cell[record.STOCK], KERNEL: cell[record.OURS]}


def _several(cells: Sequence[Cell]) -> str:
    return ", ".join(record.kernels(cells)) or "none at all"
