"""What a kernel was measured at: matrix/results/bench-<kind>-<gpu>-<release>.json.

A number counts only where the same run measured stock vLLM of the same release, and the record
says which kernel ran ("kernel", for all of it or in a cell). What does not count is told, with why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.kernels import kernel as kernels
from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout
from infera_compat.plan.author import Target
from infera_shims.seams.kv_views import regimes

Cell = Mapping[str, Any]

ENGINE = "engine"
KINDS: Mapping[str, str] = {
    kernels.ATTENTION: "attention",
    kernels.MLA_DECODE: "attention",
    kernels.EXPERTS: "experts",
}
"""By a kernel's op: which bench measures it alone."""

BATCH: Mapping[str, str] = {"attention": "B", "experts": "M", ENGINE: "batch"}
"""By kind: the key of a cell that is its batch size."""
NO_CELLS: Mapping[str, str] = {kernels.MLA_DECODE: "nothing yet: no bench of ours has cells of MLA"}
"""By op: what is said where no command would measure it."""

TOLD = ("gpu", "release", "torch", "triton", "commit", "date", "cells")
SIDES = ("stock", "ours")
SAID = ("model", "mode", "same_text")
FIGURES = ("tok_s", "ttft_ms", "tpot_ms", "start_s", "peak_gib")
"""What an engine's cell says, and what of each side."""

STOCK_BACKENDS = tuple(dict.fromkeys(entry.backend for entry in regimes.EXPECTED))
STOCK_EXPERTS = "stock's experts"
"""What the baseline of a cell of experts is called, which names none."""


@dataclass(frozen=True)
class Bench:
    """One record, with the cells that count. refused: why others do not."""

    file: Path
    kind: str
    told: Mapping[str, Any]
    cells: tuple[Cell, ...]
    refused: tuple[str, ...]

    @property
    def release(self) -> str:
        """The release of vLLM whose stock was measured beside the kernel."""
        return str(self.told["release"])

    @property
    def where(self) -> str:
        """The machine and the release."""
        return f"{self.told['gpu']}, vLLM {self.release}"

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that count, each once."""
        return tuple(sorted({cell[BATCH[self.kind]] for cell in self.cells}))


@dataclass(frozen=True)
class Group:
    """Cells of one kind in a bench: of a phase, a mode and a baseline."""

    bench: Bench
    phase: str
    mode: str
    baseline: str
    cells: tuple[Cell, ...]

    @property
    def batches(self) -> tuple[int, ...]:
        """As Bench's."""
        key = BATCH[self.bench.kind]
        return tuple(sorted({cell[key] for cell in self.cells}))

    @property
    def chosen(self) -> tuple[Cell, ...]:
        """The cells in which the kernel runs; the others are left to stock."""
        return tuple(cell for cell in self.cells if cell["chosen"])

    @property
    def worst(self) -> float | None:
        """The smallest ratio where the kernel runs; None where it runs nowhere."""
        return min(map(ratio, self.chosen), default=None)

    def floor(self, side: str) -> float | None:
        """The geometric mean of a side's time over the floor, where the cells have one."""
        values = [
            cell[f"{side}_us"] / cell["floor_us"]
            for cell in self.cells
            if _is_time(cell.get("floor_us")) and _is_time(cell.get(f"{side}_us"))
        ]
        return geomean(values)


@dataclass(frozen=True)
class Benches:
    """All records of a kernel. alone: of the kernel by itself; engine: of the whole engine."""

    alone: tuple[Bench, ...]
    engine: tuple[Bench, ...]
    do: str
    do_engine: str

    @property
    def counted(self) -> tuple[Bench, ...]:
        """Those of the kernel by itself that have a cell that counts."""
        return tuple(bench for bench in self.alone if bench.cells)

    @property
    def served(self) -> tuple[Bench, ...]:
        """Those of the whole engine that have one."""
        return tuple(bench for bench in self.engine if bench.cells)

    @property
    def refused(self) -> tuple[str, ...]:
        """What does not count, and why."""
        return tuple(why for bench in (*self.alone, *self.engine) for why in bench.refused)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell of the kernel by itself that counts."""
        return tuple(cell for bench in self.alone for cell in bench.cells)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The same, by bench, phase, mode and baseline."""
        return tuple(group for bench in self.counted for group in _groups(bench))


def ratio(cell: Cell) -> float:
    """Stock's time by the kernel's; 1 where the cell is left to stock."""
    return float(cell["stock_us"] / cell["ours_us"]) if cell["chosen"] else 1.0


def geomean(values: Iterable[float]) -> float | None:
    """The geometric mean, None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def reached(target: Target, benches: Benches) -> dict[str, float]:
    """By bench: the geometric mean over the cells that a target means, where there are any."""
    found = {
        bench.where: geomean(ratio(x) for x in bench.cells if _meant(target, x, BATCH[bench.kind]))
        for bench in benches.counted
    }
    return {where: value for where, value in found.items() if value is not None}


def read(checkout: Checkout, kernel: str, op: str, releases: Sequence[str]) -> Benches:
    """The records that speak of a kernel; raises CompatError where one is damaged.

    releases: those of matrix/releases.toml.
    """
    kind = KINDS[op]
    return Benches(
        tuple(_read(checkout, kind, kernel, op, releases)),
        tuple(_read(checkout, ENGINE, kernel, op, releases)),
        NO_CELLS.get(op) or _command(kind),
        NO_CELLS.get(op) or _command(ENGINE),
    )


def _command(kind: str) -> str:
    file = f"matrix/results/bench-{kind}-GPU-RELEASE.json"
    return f"`infera-compat bench {kind} --json {file}`"


def _read(
    checkout: Checkout, kind: str, kernel: str, op: str, releases: Sequence[str]
) -> Iterator[Bench]:
    for file in sorted(checkout.results.glob(f"bench-{kind}-*.json")):
        body = files.load(file)
        if missing := [name for name in TOLD if name not in body]:
            raise files.damaged(file, f"no {', '.join(missing)}", f"a record of bench {kind}")
        if not isinstance(body["cells"], list) or not all(
            isinstance(cell, dict) for cell in body["cells"]
        ):
            raise files.damaged(file, "cells of another make", "a list of objects")
        told = {name: body[name] for name in TOLD if name != "cells"}
        why = _why_not_the_record(file, body, releases)
        cells, refused = [], [] if why is None else [f"{file.name}: {why}"]
        for cell in body["cells"] if why is None else ():
            named = cell.get("kernel", body.get("kernel"))
            if named == kernel:
                why = _why_not_the_cell(kind, op, cell, str(body["release"]))
                cells += [{"chosen": True, **cell}] if why is None else []
            elif named is None:
                why = 'no "kernel" says which kernel ran'
            else:
                continue
            if why is not None:
                refused.append(f"{file.name}: {why}")
        if cells or refused:
            yield Bench(file, kind, told, tuple(cells), _counted(refused))


def _why_not_the_record(file: Path, body: Mapping[str, Any], releases: Sequence[str]) -> str | None:
    """Why nothing in a record counts."""
    release = str(body["release"])
    if not file.stem.endswith(f"-{release}"):
        return f"it was measured on vLLM {release}, its name says another release"
    if release not in releases:
        return f"vLLM {release} is none of matrix/releases.toml"
    return None


def _why_not_the_cell(kind: str, op: str, cell: Cell, release: str) -> str | None:
    """Why a cell of the kernel does not count."""
    against = str(cell.get("baseline_release", release))
    if against != release:
        return f"its baseline is vLLM {against}, the kernel ran in {release}"
    size = cell.get(BATCH[kind])
    if isinstance(size, bool) or not isinstance(size, int):
        return f"no {BATCH[kind]} says the batch size"
    if kind == ENGINE:
        empty = [name for name in SAID if name not in cell]
        empty += [
            f"{side}.{name}"
            for side in SIDES
            for name in FIGURES
            if not isinstance(cell.get(side), dict) or name not in cell[side]
        ]
        return f"not measured: {', '.join(empty)}" if empty else None
    if not _is_time(cell.get("stock_us")):
        return "stock vLLM was not measured beside it (no stock_us)"
    if cell.get("chosen", True) and not _is_time(cell.get("ours_us")):
        return "the kernel was not measured (no ours_us)"
    if op != kernels.EXPERTS and cell.get("baseline") not in STOCK_BACKENDS:
        return f"its baseline is {cell.get('baseline')}, no backend of stock vLLM"
    return None


def _is_time(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value > 0


def _counted(reasons: Sequence[str]) -> tuple[str, ...]:
    """Each reason once, with how many cells it is of."""
    return tuple(
        reason if (times := reasons.count(reason)) == 1 else f"{reason} ({times} cells)"
        for reason in dict.fromkeys(reasons)
    )


def _groups(bench: Bench) -> Iterator[Group]:
    def about(cell: Cell) -> tuple[str, str, str]:
        stock = STOCK_EXPERTS if bench.kind == KINDS[kernels.EXPERTS] else ""
        return (
            str(cell.get("phase", "")),
            str(cell.get("mode", "")),
            str(cell.get("baseline", stock)),
        )

    for key in dict.fromkeys(map(about, bench.cells)):
        yield Group(bench, *key, tuple(cell for cell in bench.cells if about(cell) == key))


def _meant(target: Target, cell: Cell, batch: str) -> bool:
    """Whether a target speaks of a cell."""
    same = {"phase": target.phase, "mode": target.mode, "baseline": target.baseline}
    if any(value is not None and cell.get(key) != value for key, value in same.items()):
        return False
    low, high = target.batch_min, target.batch_max
    return (low is None or cell[batch] >= low) and (high is None or cell[batch] <= high)
