"""A bench's record that nobody measured: what benches write, with made-up times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infera_compat.bench import cells, run
from infera_compat.bench.floors import Rates
from infera_compat.kernels.kernel import ATTENTION, EXPERTS
from infera_compat.kernels.table import Table

RATES = Rates(copy=4e12, matmul=8e14)
TOLD = {
    "gpu": "NVIDIA H200",
    "release": "0.33.0",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "commit": "abc1234",
    "date": "2026-11-30",
    "sources": {"infera_decode": "0" * 16},
}
RUN = {"copy_bytes_s": RATES.copy, "matmul_flops_s": RATES.matmul}


class FakeKernel:
    """What a run reads of a kernel."""

    def __init__(self, name: str, op: str = ATTENTION, max_query_len: int | None = 8) -> None:
        self.name, self.op, self.max_query_len = name, op, max_query_len


def subject(
    name: str = "infera_decode",
    several: tuple[Any, ...] | None = None,
    table: Table | None = None,
    max_query_len: int | None = 8,
) -> run.Subject:
    kernel: Any = FakeKernel(name, max_query_len=max_query_len)
    found = cells.attention(max_query_len) if several is None else several
    return run.Subject(kernel, "fakes 1.0", table or Table.everywhere(), found)


def experts_subject() -> run.Subject:
    kernel: Any = FakeKernel("infera_experts", EXPERTS)
    return run.Subject(kernel, "fakes 1.0", Table.everywhere(), cells.experts())


class FakeStock:
    """A source whose stock side takes `ratio` times as long as ours, which takes twice the floor.

    by_name: other ratios, for cells whose name contains a text. raises: what a cell raises instead.
    """

    def __init__(
        self,
        ratio: float = 1.5,
        by_name: dict[str, float] | None = None,
        raises: dict[str, Exception] | None = None,
    ) -> None:
        self.ratio, self.by_name, self.raises = ratio, by_name or {}, raises or {}
        self.measured: list[str] = []
        self.closed = 0

    def measure(self, kernel: Any, source: str, cell: Any, timed: bool) -> dict[str, Any]:
        self.measured.append(cell.name)
        for text, error in self.raises.items():
            if text in cell.name:
                raise error
        if not timed:
            return {"worst_difference": 0.0}
        ratio = next((r for text, r in self.by_name.items() if text in cell.name), self.ratio)
        hit = min(cell.E, cell.M * cell.k) if hasattr(cell, "E") else 0
        work = run.floors.of_experts(cell, hit) if hit else run.floors.of_attention(cell)
        ours = 2 * work.floor_us(RATES)
        return {"stock_us": ratio * ours, "ours_us": ours, "experts_hit": hit}

    def close(self) -> None:
        self.closed += 1


def drained(done: Iterator[run.Done]) -> list[run.Done]:
    return list(done)
