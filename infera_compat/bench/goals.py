"""What was set out to be reached, and whether a record reaches it.

A cell counts by its ratio, stock's time by the kernel's; where the kernel's table leaves it to
stock it counts as 1. Goals of decoding are about captured graphs and a cold cache, which is what an
engine runs; the worst cell is looked for among all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infera_compat.bench import record
from infera_compat.bench.cells import COLD, DECODE, FLASH, GRAPH, PREFILL, TRITON
from infera_compat.plan.benches import BATCH, geomean, ratio

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """A ratio to stock, of the geometric mean over some cells of a kernel.

    same: what those cells have. low, high: the batch sizes that are meant.
    """

    kind: str
    kernel: str
    what: str
    ratio: float
    same: Mapping[str, str]
    low: int | None = None
    high: int | None = None

    def means(self, cell: Cell) -> bool:
        """Whether a cell is one of those."""
        batch = cell[BATCH[self.kind]]
        return (
            cell["kernel"] == self.kernel
            and all(cell.get(key) == value for key, value in self.same.items())
            and (self.low is None or batch >= self.low)
            and (self.high is None or batch <= self.high)
        )


@dataclass(frozen=True)
class Score:
    """What a record has of a goal. found: None where it has no such cell."""

    what: str
    wanted: float
    found: float | None
    cells: int

    @property
    def reached(self) -> bool:
        """Whether it is reached."""
        return self.found is not None and self.found >= self.wanted


DECODING = {"phase": DECODE, "mode": GRAPH, "cache": COLD}
GOALS: tuple[Goal, ...] = (
    *(
        Goal(record.ATTENTION, "infera_decode", what, wanted, {**DECODING, "baseline": of}, *sizes)
        for what, wanted, of, sizes in (
            ("decode over FLASH_ATTN, B up to 8", 1.35, FLASH, (None, 8)),
            ("decode over FLASH_ATTN, B from 16", 1.05, FLASH, (16, None)),
            ("decode over TRITON_ATTN", 1.5, TRITON, (None, None)),
        )
    ),
    *(
        Goal(record.ATTENTION, "infera_attention", what, wanted, {**same, "baseline": TRITON})
        for what, wanted, same in (
            ("prefill over TRITON_ATTN", 4.0, {"phase": PREFILL}),
            ("decode over TRITON_ATTN", 1.5, DECODING),
        )
    ),
    *(
        Goal(record.ENGINE, "infera_experts", f"{load}, tokens a second", wanted, {"load": load})
        for load, wanted in (("prefill-heavy", 1.15), ("decode-heavy", 1.03))
    ),
    *(
        Goal(record.EXPERTS, "infera_experts", what, wanted, {"mode": GRAPH}, *sizes)
        for what, wanted, sizes in (
            ("M from 512", 1.5, (512, None)),
            ("M up to 32", 1.1, (None, 32)),
        )
    ),
)
NO_SLOWER = 1.0


def scores(kind: str, cells: Sequence[Cell]) -> Iterator[Score]:
    """Each goal of a kind that its kernel has cells for, and each kernel's worst cell."""
    there = record.kernels(cells)
    by = of_engines if kind == record.ENGINE else ratio
    for goal in GOALS:
        if goal.kind == kind and goal.kernel in there:
            meant = [cell for cell in cells if goal.means(cell)]
            what = f"{goal.kernel}: {goal.what}"
            yield Score(what, goal.ratio, geomean(map(by, meant)), len(meant))
    for kernel in there:
        chosen = [c for c in cells if c["kernel"] == kernel and c.get("chosen", True)]
        worst = min(chosen, key=by, default=None)
        what = f"{kernel}: the worst cell where it is chosen"
        if worst is None:
            yield Score(f"{what} (nowhere)", NO_SLOWER, None, 0)
        else:
            yield Score(f"{what}, {worst['name']}", NO_SLOWER, by(worst), len(chosen))


def of_engines(cell: Cell) -> float:
    """Tokens a second of the engine with the kernel, by stock's."""
    return float(cell["ours"]["tok_s"] / cell["stock"]["tok_s"])


@dataclass(frozen=True)
class Group:
    """Cells that are told of together: of one kernel, phase or layer, baseline, mode, cache, batch.

    key: those, in words. geomean: of their ratios, 1 where left to stock. measured: the same of
    what was measured, chosen or not. worst: the cell with the smallest ratio measured.
    """

    key: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def geomean(self) -> float:
        """The geometric mean of the ratios, cells left to stock being 1."""
        return _mean(map(ratio, self.cells))

    @property
    def measured(self) -> float:
        """The geometric mean of the ratios that were measured, whatever a table says."""
        return _mean(map(measured, self.cells))

    @property
    def worst(self) -> Cell:
        """The cell with the smallest measured ratio."""
        return min(self.cells, key=measured)

    @property
    def where(self) -> str:
        """What tells the worst cell from the others of its group."""
        said = {word for part in self.key for word in part.split()}
        return " ".join(word for word in str(self.worst["name"]).split() if word not in said)

    def floor(self, side: str) -> float:
        """The geometric mean of a side's time by the floor."""
        return _mean(cell[side] / cell[record.FLOOR] for cell in self.cells)

    @property
    def left(self) -> int:
        """How many cells are left to stock."""
        return sum(not cell["chosen"] for cell in self.cells)


def measured(cell: Cell) -> float:
    """Stock's time by the kernel's, whether the kernel is chosen there or not."""
    return float(cell[record.STOCK] / cell[record.OURS])


COLUMNS: Mapping[str, tuple[str, ...]] = {
    record.ATTENTION: ("kernel", "phase", "baseline", "mode", "cache", "batch"),
    record.EXPERTS: ("kernel", "layer", "mode", "tokens"),
}
"""By kind: what the parts of a group's key are."""

BUCKETS: Mapping[str, tuple[int, ...]] = {
    record.ATTENTION: (8,),
    record.EXPERTS: (32, 256),
}
"""By kind: where groups of batch sizes end; the last one has no end."""


def groups(kind: str, cells: Sequence[Cell]) -> tuple[Group, ...]:
    """The cells in groups, in the order in which they were measured."""
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        batch = _bucket(kind, int(cell[BATCH[kind]]))
        if kind == record.ATTENTION:
            names = COLUMNS[kind][:-1]
            key = (*(str(cell[name]) for name in names), batch)
        else:
            layer = " ".join(f"{name}{cell[name]}" for name in ("E", "k", "K", "N"))
            key = (str(cell["kernel"]), layer, str(cell["mode"]), batch)
        found.setdefault(key, []).append(cell)
    return tuple(Group(key, tuple(several)) for key, several in found.items())


def _bucket(kind: str, batch: int) -> str:
    low = 1
    for high in BUCKETS[kind]:
        if batch <= high:
            return f"{low}–{high}"
        low = high + 1
    return f"{low}–"


def _mean(values: Any) -> float:
    found = geomean(values)
    if found is None:
        raise AssertionError("a group has cells")
    return found
