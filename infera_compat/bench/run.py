"""A run of a bench: cell for cell, each held against stock and timed beside it, and taken down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infera_compat.bench import floors
from infera_compat.bench.cells import QUICK, AttentionCell, ExpertsCell
from infera_compat.bench.floors import Rates, Work
from infera_compat.bench.record import FLOOR, OURS, STOCK, Record
from infera_compat.errors import Refused
from infera_compat.kernels.kernel import Kernel
from infera_compat.kernels.table import Table

AnyCell = AttentionCell | ExpertsCell
AnyKernel = Kernel[Any, Any, Any]
STOCK_EXPERTS = "TritonExperts"
"""The stock experts that a bench is held against, as reports name them."""


class Source(Protocol):
    """What runs a cell on both sides: infera_shims.bench, which has stock vLLM."""

    def measure(self, kernel: AnyKernel, source: str, cell: Any, timed: bool) -> dict[str, Any]:
        """Hold the kernel's outputs against stock's, and time both sides if `timed`.

        Raises Refused where the kernel does not take the layer, and an error with the reason where
        the sides do not do the same.
        """

    def close(self) -> None:
        """Give memory back."""


@dataclass(frozen=True)
class Subject:
    """A kernel to measure. source: its distribution with its version. table: where it is chosen.

    cells: those that it is measured at.
    """

    kernel: AnyKernel
    source: str
    table: Table
    cells: tuple[AnyCell, ...]


@dataclass(frozen=True)
class Done:
    """What became of a cell. found: what was measured. why: the reason where nothing was.

    failed: whether that is an error, and not only a layer that the kernel does not take.
    """

    subject: Subject
    cell: AnyCell
    found: Mapping[str, Any] | None
    why: str | None = None
    failed: bool = False


def picked(
    cells: Sequence[AnyCell], baselines: Sequence[str], only: str | None, quick: bool
) -> tuple[AnyCell, ...]:
    """The cells that a run is asked for.

    baselines: of those stock backends; all where there is none. only: whose name contains this.
    quick: every QUICKth of what is left.
    """
    left = [
        cell
        for cell in cells
        if (not baselines or baseline(cell) in baselines) and (only is None or only in cell.name)
    ]
    return tuple(left[::QUICK] if quick else left)


def grouped(cells: Sequence[AnyCell]) -> tuple[AnyCell, ...]:
    """The same cells, those of one layer one after the other: it is built once."""
    layers: dict[Any, list[AnyCell]] = {}
    for cell in cells:
        layers.setdefault(_layer(cell), []).append(cell)
    return tuple(cell for several in layers.values() for cell in several)


def baseline(cell: AnyCell) -> str:
    """The stock code that a cell is held against."""
    return cell.baseline if isinstance(cell, AttentionCell) else STOCK_EXPERTS


def run(
    subjects: Sequence[Subject],
    source: Source,
    record: Record,
    rates: Rates | None,
    told: Callable[[Subject, AnyCell], None],
) -> Iterator[Done]:
    """Measure each subject's cells that the record has not; without rates nothing is timed.

    told: called with each cell before it runs.
    """
    for subject in subjects:
        kernel = subject.kernel
        for cell in grouped(subject.cells):
            if record.has(cell.name, kernel.name):
                continue
            told(subject, cell)
            try:
                found = source.measure(kernel, subject.source, cell, rates is not None)
            except Refused as refusal:
                record.refuse(cell.name, kernel.name, str(refusal))
                yield Done(subject, cell, None, str(refusal))
                continue
            except Exception as error:  # noqa: BLE001 (the other cells go on)
                why = f"{type(error).__name__}: {error}"
                record.refuse(cell.name, kernel.name, why)
                source.close()
                yield Done(subject, cell, None, why, failed=True)
                continue
            if rates is not None:
                found = taken_down(subject, cell, found, rates)
                record.add(found)
            yield Done(subject, cell, found)
    source.close()


def taken_down(
    subject: Subject, cell: AnyCell, found: Mapping[str, Any], rates: Rates
) -> dict[str, Any]:
    """A cell as the record has it."""
    if isinstance(cell, AttentionCell):
        sizes, work = _attention(cell), floors.of_attention(cell)
    else:
        sizes, work = _experts(cell), floors.of_experts(cell, found["experts_hit"])
    times = {STOCK: found[STOCK], OURS: found[OURS], FLOOR: work.floor_us(rates)}
    rest = {name: value for name, value in found.items() if name not in times}
    return {
        "kernel": subject.kernel.name,
        "name": cell.name,
        **sizes,
        "baseline": baseline(cell),
        **times,
        "chosen": chosen(subject.table, cell),
        **_moved(work),
        **rest,
    }


def chosen(table: Table, cell: AnyCell) -> bool:
    """Whether a kernel's table takes the cell's step for the kernel."""
    if isinstance(cell, AttentionCell):
        heads = cell.heads
        return table.prefers(
            cell.baseline,
            batch=cell.batch,
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_size=heads.head_size,
            block_size=cell.block,
        )
    return table.prefers(
        STOCK_EXPERTS,
        tokens=cell.M,
        experts=cell.E,
        top_k=cell.k,
        hidden=cell.K,
        intermediate=cell.N,
    )


def _attention(cell: AttentionCell) -> dict[str, Any]:
    return {
        "phase": cell.phase,
        "B": cell.batch,
        "S": max(cell.seq_lens),
        "q": max(cell.query_lens),
        "heads": cell.heads.heads,
        "kv_heads": cell.heads.kv_heads,
        "head_size": cell.heads.head_size,
        "block": cell.block,
        "mode": cell.mode,
        "cache": cell.cache,
        "ragged": cell.ragged,
        "tokens": cell.tokens,
        "kv_bytes": floors.kv_bytes(cell),
    }


def _experts(cell: ExpertsCell) -> dict[str, Any]:
    sizes = {name: getattr(cell, name) for name in ("E", "k", "K", "N", "M")}
    return {**sizes, "mode": cell.mode}


def _moved(work: Work) -> dict[str, Any]:
    return {"bytes": work.bytes, "flops": work.flops}


def _layer(cell: AnyCell) -> Any:
    if isinstance(cell, AttentionCell):
        return cell.heads, cell.block, cell.baseline, cell.mode
    return cell.layer
