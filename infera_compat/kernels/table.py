"""Where a kernel is faster than stock: measured a GPU, and read before anything is captured.

A table is a JSON file:

    {"kernel": "my_decode", "gpu": "NVIDIA H200",
     "measured": {"release": "0.33.0", "commit": "1a2b3c4", "date": "2026-11-02"},
     "cells": [{"batch": 8, "heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16,
                "stock_us": 41.2, "ours_us": 33.0}]}

A key holds only what is known when a CUDA graph is captured. Lengths change between its replays.
"""

from __future__ import annotations

import json
import math
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.errors import CompatError
from infera_compat.kernels.kernel import ATTENTION, EXPERTS, MLA_DECODE
from infera_compat.settings import ALL, AUTO, KERNEL_TABLE

KEYS: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("batch", "heads", "kv_heads", "head_size", "block_size"),
    MLA_DECODE: ("batch", "heads", "latent", "rope", "block_size"),
    EXPERTS: ("tokens", "experts", "top_k", "hidden", "intermediate"),
}
"""A cell's key by op: first the bucket (requests, tokens of a step), then a layer's own sizes.

Each but `batch` is the field of that name of the op's spec, or of a call's sizes."""

FIELDS = ("kernel", "gpu", "measured", "cells")
MEASURED = ("release", "commit", "date")
STOCK, KERNEL = "stock_us", "ours_us"


@dataclass(frozen=True)
class Row:
    """The cells of one layer's sizes: buckets, rising, and in which of them the kernel is faster.

    buckets: a step belongs to the nearest one at or above it.
    """

    buckets: tuple[int, ...]
    faster: tuple[bool, ...]

    def prefers(self, size: int) -> bool:
        """Whether the kernel is faster in the bucket of a step of this size; False without one."""
        at = bisect_left(self.buckets, size)
        return at < len(self.buckets) and self.faster[at]


NONE = Row((), ())
EVERY = Row((sys.maxsize,), (True,))


@dataclass(frozen=True)
class Table:
    """Where a kernel runs in place of stock.

    kernel, gpu: what was measured, and on what. measured: release, commit and date of it.
    op: the op whose keys the cells have; None where there are no cells.
    rows: by a layer's own sizes, in the order of KEYS[op].
    always: whether it runs wherever it supports a layer, measured or not.
    """

    kernel: str = ""
    gpu: str = ""
    measured: Mapping[str, str] | None = None
    op: str | None = None
    rows: Mapping[tuple[int, ...], Row] | None = None
    always: bool = False

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a table; raises CompatError for a file that is none, with the line or the cell."""
        try:
            body = json.loads(path.read_bytes())
            return _parse(body)
        except (OSError, ValueError, RecursionError) as error:
            raise CompatError(
                f"{path} is no table of measurements",
                found=f"{type(error).__name__}: {error}"[:300],
                expected=f"a JSON object with {', '.join(FIELDS)}",
                do="Measure again, or take the file away.",
            ) from error

    @classmethod
    def for_gpu(cls, folder: Path, kernel: str, gpu: str) -> Table | None:
        """A kernel's table for a GPU, beside its module in `folder`; None where there is none.

        gpu: the device's name, "NVIDIA H200". Raises CompatError for a bad file.
        """
        path = folder / "tables" / f"{kernel}-{slug(gpu)}.json"
        return cls.read(path) if path.is_file() else None

    @classmethod
    def everywhere(cls) -> Table:
        """The kernel runs wherever it supports a layer."""
        return cls(always=True)

    @classmethod
    def chosen(cls, asked: str | Path, *, kernel: str, op: str, folder: Path, gpu: str) -> Table:
        """The table that INFERA_KERNEL_TABLE means for a kernel.

        asked: Settings.kernel_table. kernel, op: the kernel's. folder: of its module. gpu: the
        device's name. A file that was measured for another kernel leaves this one its own table;
        one without a table runs everywhere, since it was asked for by name.
        Raises CompatError for a bad file, one of another op, and a named one of another GPU.
        """
        if asked == ALL:
            return cls.everywhere()
        named = None if asked == AUTO else cls.read(Path(asked))
        mine = named is not None and named.kernel == kernel
        table = named if mine else cls.for_gpu(folder, kernel, gpu)
        if table is None:
            return cls.everywhere()
        if table.kernel != kernel:
            raise CompatError(
                f"the table beside {kernel} is another kernel's",
                found=f"measurements of {table.kernel!r}",
                expected=f"some of {kernel!r}",
                do=f"Mend the file, or set {KERNEL_TABLE}={ALL}.",
            )
        if slug(table.gpu) != slug(gpu):
            raise CompatError(
                f"the table for {kernel} was measured elsewhere",
                found=f"measurements of {table.gpu!r}",
                expected=f"some of {gpu!r}",
                do=f"Measure here, or set {KERNEL_TABLE}={ALL}.",
            )
        if table.op not in (op, None):
            raise CompatError(
                f"the table for {kernel} is of another op",
                found=f"cells of {table.op}",
                expected=f"cells with {', '.join(KEYS[op])}",
                do="Measure again.",
            )
        return table

    def row(self, **sizes: int) -> Row:
        """The cells of a layer, by its own sizes: KEYS[op] without the first.

        Looked up once a layer; what its row prefers is cheap enough for every step.
        """
        if self.always:
            return EVERY
        if not self.rows or self.op is None:
            return NONE
        names = KEYS[self.op][1:]
        if set(sizes) != set(names):
            raise TypeError(f"a layer of {self.op} has {', '.join(names)}, not {', '.join(sizes)}")
        return self.rows.get(tuple(sizes[name] for name in names), NONE)

    def prefers(self, **key: int) -> bool:
        """Whether the kernel runs at this key, a value for each of KEYS[op].

        Strictly faster in the nearest bucket at or above; a tie, or no such cell, is stock's.
        """
        buckets = {names[0] for names in KEYS.values()} & set(key)
        if len(buckets) != 1:
            raise TypeError(f"a key has one of a step's sizes, not {', '.join(key)}")
        bucket = buckets.pop()
        return self.row(**{name: key[name] for name in key if name != bucket}).prefers(key[bucket])


def slug(gpu: str) -> str:
    """A GPU's name as a file's: "NVIDIA H200" is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def _parse(body: Any) -> Table:
    """A table of parsed JSON; raises ValueError."""
    if not isinstance(body, dict) or set(body) != set(FIELDS):
        raise ValueError(f"fields {_names(body)}")
    kernel, gpu, measured, cells = (body[field] for field in FIELDS)
    if not (isinstance(kernel, str) and isinstance(gpu, str)):
        raise ValueError("kernel or gpu is no text")
    if not isinstance(measured, dict) or not all(
        name in measured and isinstance(measured[name], str) for name in MEASURED
    ):
        raise ValueError(f"measured has {_names(measured)}, and needs {', '.join(MEASURED)}")
    if not isinstance(cells, list):
        raise ValueError("cells is no list")
    op: str | None = None
    found: dict[tuple[int, ...], dict[int, bool]] = {}
    for number, cell in enumerate(cells):
        try:
            op = _op_of(cell, op)
            bucket, *rest = (_positive(cell, name) for name in KEYS[op])
            buckets = found.setdefault(tuple(rest), {})
            if bucket in buckets:
                raise ValueError("its key is there twice")
            buckets[bucket] = _time(cell, KERNEL) < _time(cell, STOCK)
        except ValueError as error:
            raise ValueError(f"cell {number}: {error}") from error
    rows = {
        rest: Row(tuple(sorted(buckets)), tuple(buckets[size] for size in sorted(buckets)))
        for rest, buckets in found.items()
    }
    return Table(kernel, gpu, {name: measured[name] for name in MEASURED}, op, rows)


def _op_of(cell: Any, before: str | None) -> str:
    """The op whose key a cell has, the same as that of the cells before it."""
    if isinstance(cell, dict):
        for op, names in KEYS.items():
            if set(cell) == {*names, STOCK, KERNEL} and before in (op, None):
                return op
    wanted = KEYS[before] if before else "a key of " + " or ".join(KEYS)
    text = wanted if isinstance(wanted, str) else ", ".join(wanted)
    raise ValueError(f"it has {_names(cell)}, and needs {text}, {STOCK}, {KERNEL}")


def _positive(cell: Mapping[str, Any], name: str) -> int:
    value = cell[name]
    if type(value) is not int or value < 1:  # a bool is no size
        raise ValueError(f"{name} is {value!r}, no positive whole number")
    return value


def _time(cell: Mapping[str, Any], name: str) -> float:
    value = cell[name]
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}, no time in microseconds")
    return float(value)


def _names(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(map(str, value)) or "(none)"
    return f"(a {type(value).__name__})"
