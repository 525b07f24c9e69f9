"""Where a kernel is faster than stock: measured a GPU, and read before anything is captured.

A table is a JSON file:

    {"kernel": "my_decode", "gpu": "NVIDIA H200",
     "measured": {"release": "0.33.0", "commit": "1a2b3c4", "date": "2026-11-02"},
     "cells": [{"baseline": "FLASH_ATTN", "batch": 8, "heads": 32, "kv_heads": 8,
                "head_size": 128, "block_size": 16, "stock_us": 41.2, "ours_us": 33.0}]}

A key holds only what is known when a CUDA graph is captured. Lengths change between its replays, so
the two times of a cell are those of the length at which the kernel gains least.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
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
BASELINE = "baseline"
"""Of each cell: the stock code that was measured beside the kernel, as a report names what a layer
runs on: an attention backend ("FLASH_ATTN"), or a class of experts ("TritonExperts")."""
STOCK, KERNEL = "stock_us", "ours_us"

FASTER = 1.03
"""The kernel runs where stock takes at least this many times as long. What gains less may be the
measurement's own noise, and is not worth another code path in a server."""

FOLDER = "tables"
"""Beside a kernel's module."""

Key = tuple[str | int, ...]
"""A baseline, then a layer's own sizes in the order of KEYS[op]."""


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
    rows: by the baseline and a layer's own sizes.
    always: whether it runs wherever it supports a layer, measured or not.
    """

    kernel: str = ""
    gpu: str = ""
    measured: Mapping[str, str] | None = None
    op: str | None = None
    rows: Mapping[Key, Row] | None = None
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
        path = file_of(folder, kernel, gpu)
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
        one without a table runs everywhere, since it was asked for by name. A layer over stock code
        that the table does not have as a baseline is stock's.
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

    @property
    def baselines(self) -> frozenset[str]:
        """The stock code that was measured beside the kernel."""
        return frozenset(str(key[0]) for key in self.rows or ())

    def only(self, baselines: Collection[str]) -> Table:
        """The same without the cells over other stock code."""
        rows = {key: row for key, row in (self.rows or {}).items() if key[0] in baselines}
        return replace(self, rows=rows)

    def row(self, baseline: str, **sizes: int) -> Row:
        """The cells of a layer over `baseline`, by its own sizes: KEYS[op] without the first.

        Looked up once a layer; what its row prefers is cheap enough for every step.
        """
        if self.always:
            return EVERY
        if not self.rows or self.op is None:
            return NONE
        names = KEYS[self.op][1:]
        if set(sizes) != set(names):
            raise TypeError(f"a layer of {self.op} has {', '.join(names)}, not {', '.join(sizes)}")
        return self.rows.get((baseline, *(sizes[name] for name in names)), NONE)

    def ever(self, baseline: str, **sizes: int | None) -> bool:
        """Whether the kernel is faster in any bucket of a layer; sizes that are None: of any."""
        if self.always:
            return True
        names = KEYS[self.op][1:] if self.op else ()
        wanted = (baseline, *(sizes[name] for name in names))
        return any(
            any(row.faster)
            and all(ours in (None, there) for ours, there in zip(wanted, key, strict=True))
            for key, row in (self.rows or {}).items()
        )

    def wins(self, baseline: str) -> int:
        """In how many cells over `baseline` the kernel is faster."""
        rows = (self.rows or {}).items()
        return sum(sum(row.faster) for key, row in rows if key[0] == baseline)

    def prefers(self, baseline: str, **key: int) -> bool:
        """Whether the kernel runs at this key, a value for each of KEYS[op].

        Faster in the nearest bucket at or above, by FASTER; less, or no such cell, is stock's.
        """
        buckets = {names[0] for names in KEYS.values()} & set(key)
        if len(buckets) != 1:
            raise TypeError(f"a key has one of a step's sizes, not {', '.join(key)}")
        bucket = buckets.pop()
        sizes = {name: key[name] for name in key if name != bucket}
        return self.row(baseline, **sizes).prefers(key[bucket])


def file_of(folder: Path, kernel: str, gpu: str) -> Path:
    """Where a kernel's table for a GPU lies, if there is one. folder: of the kernel's module."""
    return folder / FOLDER / f"{kernel}-{slug(gpu)}.json"


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
    found: dict[Key, dict[int, bool]] = {}
    for number, cell in enumerate(cells):
        try:
            op = _op_of(cell, op)
            bucket, *rest = (_positive(cell, name) for name in KEYS[op])
            buckets = found.setdefault((_name(cell, BASELINE), *rest), {})
            if bucket in buckets:
                raise ValueError("its key is there twice")
            buckets[bucket] = _time(cell, STOCK) >= FASTER * _time(cell, KERNEL)
        except ValueError as error:
            raise ValueError(f"cell {number}: {error}") from error
    rows = {
        key: Row(tuple(sorted(buckets)), tuple(buckets[size] for size in sorted(buckets)))
        for key, buckets in found.items()
    }
    return Table(kernel, gpu, {name: measured[name] for name in MEASURED}, op, rows)


def _op_of(cell: Any, before: str | None) -> str:
    """The op whose key a cell has, the same as that of the cells before it."""
    if isinstance(cell, dict):
        for op, names in KEYS.items():
            if set(cell) == {BASELINE, *names, STOCK, KERNEL} and before in (op, None):
                return op
    wanted = KEYS[before] if before else "a key of " + " or ".join(KEYS)
    text = wanted if isinstance(wanted, str) else ", ".join(wanted)
    raise ValueError(f"it has {_names(cell)}, and needs {BASELINE}, {text}, {STOCK}, {KERNEL}")


def _name(cell: Mapping[str, Any], name: str) -> str:
    value = cell[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}, no name of stock's code")
    return value


def _positive(cell: Mapping[str, Any], name: str) -> int:
    value = cell[name]
    if type(value) is not int or value < 1:  # a bool is no size
        raise ValueError(f"{name} is {value!r}, no positive whole number")
    return value


def is_time(value: Any) -> bool:
    """Whether something read from a file is a number above zero that a float can hold."""
    # A whole number may be too large for a float; NaN is between no two numbers.
    return type(value) in (int, float) and 0 < value <= sys.float_info.max


def _time(cell: Mapping[str, Any], name: str) -> float:
    value = cell[name]
    if not is_time(value):
        raise ValueError(f"{name} is {value!r}, no time in microseconds")
    return float(value)


def _names(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(map(str, value)) or "(none)"
    return f"(a {type(value).__name__})"
