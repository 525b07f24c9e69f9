"""A bench's record: matrix/results/bench-<kind>-<gpu>-<release>.json, written as it goes.

What is measured is in the file at once: a run that was cut off keeps it, and another one that is
told to resume goes on from there. Each run measures the GPU's rates anew; a cell says by its "run"
which of them its floor was counted by.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.bench.floors import Rates
from infera_compat.errors import CompatError
from infera_compat.kernels import records
from infera_compat.kernels.records import SOURCES
from infera_compat.kernels.table import is_time
from infera_compat.matrix import files

ATTENTION, EXPERTS, ENGINE = "attention", "experts", records.ENGINE
SAME = ("gpu", "release", "torch", "triton", "commit")
"""What runs of one record have in common."""
STOCK, OURS, FLOOR = "stock_us", "ours_us", "floor_us"

TEXT, FLAG = "text", "true or false"
WHOLE, ABOVE, NUMBER = "whole number above zero", "number above zero", "number"
KINDS_OF_VALUES: Mapping[str, Callable[[Any], bool]] = {
    TEXT: lambda value: isinstance(value, str),
    FLAG: lambda value: isinstance(value, bool),
    WHOLE: lambda value: type(value) is int and value > 0,
    ABOVE: is_time,
    NUMBER: lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
}
Shape = Mapping[str, Any]
"""By a field's name: a kind of value, or the shape of an object."""

_CALL: Shape = {
    **dict.fromkeys(("kernel", "name", "baseline", "mode"), TEXT),
    **dict.fromkeys((STOCK, OURS, FLOOR, "bytes", "flops"), ABOVE),
    "chosen": FLAG,
}
_SIDE: Shape = {
    "tok_s": ABOVE,
    **dict.fromkeys(("ttft_ms", "tpot_ms", "start_s", "peak_gib"), NUMBER),
}
READ: Mapping[str, Shape] = {
    ATTENTION: {
        **_CALL,
        **dict.fromkeys(("phase", "cache"), TEXT),
        **dict.fromkeys(("B", "heads", "kv_heads", "head_size", "block"), WHOLE),
        "kv_bytes": ABOVE,
    },
    EXPERTS: {**_CALL, **dict.fromkeys(("E", "k", "K", "N", "M"), WHOLE)},
    ENGINE: {
        **dict.fromkeys(("kernel", "name", "model", "load", "baseline"), TEXT),
        **dict.fromkeys(("batch", "prompts"), WHOLE),
        "same_text": NUMBER,
        "stock": _SIDE,
        "ours": _SIDE,
    },
}
"""By kind: what is read of each cell."""
REFUSED: Shape = dict.fromkeys(("name", "kernel", "why"), TEXT)


@dataclass
class Record:
    """The record of one kind on one machine. file: where it is kept; None: nowhere."""

    body: dict[str, Any]
    file: Path | None

    @classmethod
    def begin(
        cls,
        kind: str,
        told: Mapping[str, Any],
        run: Mapping[str, Any],
        file: Path | None,
        resume: bool,
    ) -> Record:
        """A record that a run may write to.

        kind: ATTENTION, EXPERTS or ENGINE. told: SAME, the date, and by kernel the digest of its
        sources. run: what this run alone measured of the machine. resume: go on with the file that
        is there.
        Raises CompatError where that file is another machine's or another build's, and where there
        is one and it was not said what is to become of it.
        """
        fresh = {"kind": kind, **told, "runs": [dict(run)], "cells": [], "refused": []}
        if file is None or not file.exists():
            return cls(fresh, file)
        if not resume:
            raise CompatError(
                f"{file} is there already",
                found="the record of an earlier run",
                expected="a new file, or --resume to go on with this one",
                do="Give --resume, another --json, or remove it.",
            )
        body = read(file, kind)
        for name in SAME:
            if body[name] != told[name]:
                raise CompatError(
                    f"{file} can't be gone on with",
                    found=f"{name} {body[name]}",
                    expected=f"{name} {told[name]}, as it is here",
                    do="Give another --json.",
                )
        for kernel, digest in told[SOURCES].items():
            if body[SOURCES].get(kernel, digest) != digest:
                raise CompatError(
                    f"{file} can't be gone on with",
                    found=f"a record of other sources of {kernel}",
                    expected="the sources that are installed here",
                    do="Give another --json.",
                )
        both = {**body[SOURCES], **told[SOURCES]}
        runs = [*body["runs"], dict(run)]
        return cls({**body, SOURCES: both, "runs": runs, "refused": []}, file)

    @property
    def run(self) -> int:
        """The number of this run."""
        return len(self.body["runs"]) - 1

    @property
    def cells(self) -> list[dict[str, Any]]:
        """All cells so far."""
        found: list[dict[str, Any]] = self.body["cells"]
        return found

    def has(self, name: str, kernel: str) -> bool:
        """Whether a kernel's cell of that name was measured."""
        return any(cell["name"] == name and cell["kernel"] == kernel for cell in self.cells)

    def add(self, cell: Mapping[str, Any]) -> None:
        """Take a cell down, and write the file."""
        self.cells.append({**cell, "run": self.run})
        self.save()

    def refuse(self, name: str, kernel: str, why: str) -> None:
        """Take down why a cell was not measured, and write the file."""
        self.body["refused"].append({"name": name, "kernel": kernel, "why": why})
        self.save()

    def save(self) -> None:
        """Write the file, whole; CompatError where it can't be."""
        if self.file is None:
            return
        with files.writing("the record", self.file, "--json"):
            files.put_json(self.file, self.body)


def read(file: Path, kind: str | None = None) -> dict[str, Any]:
    """A record that was written; raises CompatError for a file that is none, or of another kind."""
    body = files.load(file)
    wanted = ("kind", *SAME, SOURCES, "date", "runs", "cells", "refused")
    if missing := [name for name in wanted if name not in body]:
        raise files.damaged(file, f"no {', '.join(missing)}", "a record of infera-compat bench")
    if body["kind"] not in tuple(READ):  # it may be of any type here, one without a hash too
        raise files.damaged(file, f"the kind {body['kind']!r}", f"one of {', '.join(READ)}")
    if not isinstance(body[SOURCES], dict):
        raise files.damaged(file, f"{SOURCES} {body[SOURCES]!r}", "a digest by kernel")
    shapes: dict[str, Shape] = {"runs": {}, "cells": READ[body["kind"]], "refused": REFUSED}
    for name, shape in shapes.items():
        wrong = next(_wrong(body[name], shape), None)
        if wrong is not None:
            raise files.damaged(file, f"{name}{wrong}", "what infera-compat bench writes")
    if kind is not None and body["kind"] != kind:
        raise CompatError(
            f"{file} is the record of another bench",
            found=str(body["kind"]),
            expected=kind,
            do="Give another file.",
        )
    return body


def _wrong(several: Any, shape: Shape) -> Iterator[str]:
    """What is wrong of a record's list of objects."""
    if not isinstance(several, list):
        yield f" is a {type(several).__name__}, no list"
        return
    for number, each in enumerate(several):
        for said in _misshapen(each, shape):
            yield f"[{number}]{said}"


def _misshapen(value: Any, shape: Any) -> Iterator[str]:
    if not isinstance(shape, Mapping):
        if not KINDS_OF_VALUES[shape](value):
            yield f" is {value!r}, no {shape}"
    elif not isinstance(value, dict):
        yield f" is a {type(value).__name__}, no object"
    else:
        for name, inner in shape.items():
            if name not in value:
                yield f" has no {name}"
            else:
                yield from (f".{name}{said}" for said in _misshapen(value[name], inner))


def rates(body: Mapping[str, Any], run: int = -1) -> Rates:
    """The rates that a run of a record measured."""
    told = body["runs"][run]
    return Rates(copy=told["copy_bytes_s"], matmul=told["matmul_flops_s"])


def told_rates(found: Rates) -> dict[str, float]:
    """The rates as a run has them."""
    return {"copy_bytes_s": found.copy, "matmul_flops_s": found.matmul}


def kernels(cells: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The kernels that have cells, in their order."""
    return tuple(dict.fromkeys(str(cell["kernel"]) for cell in cells))


def file_name(kind: str, gpu: str, release: str) -> str:
    """By the GPU's name, its maker left out: bench-attention-h200-0.33.0.json, say."""
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    slug = "-".join(word for word in words if word not in ("nvidia", "amd"))
    return f"bench-{kind}-{slug}-{release}.json"
