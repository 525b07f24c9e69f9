"""matrix/SUPPORT.md and the README's table: what is supported, and by what that is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infera_compat.errors import CompatError
from infera_compat.matrix import files, gpu, releases, results
from infera_compat.matrix.cells import (
    BY_CONTRACT,
    EQUAL,
    FAILED,
    MEANINGS,
    NOT_APPLICABLE,
    NOT_RUN,
    STATUSES,
    STOCK_DIFFERS,
    Cell,
)
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.releases import Line
from infera_compat.matrix.ways import (
    ATTENTION,
    AUTO,
    COMPILED,
    DENSE,
    EAGER,
    EXPERTS,
    LATENT,
    MODELS,
    MOE,
    Model,
)
from infera_compat.settings import SEAMS

BEGIN = "<!-- the matrix: written by `infera-compat matrix support`, not by hand -->"
END = "<!-- the matrix ends -->"

H200_EAGER, H200_GRAPHS = "h200 eager", "h200 graphs"
NO_SUCH_LAYERS = "no such layers"
UNEQUAL = {FAILED, STOCK_DIFFERS}


@dataclass(frozen=True)
class Column:
    """A column of a release's table. models: whose cells it shows; empty: all that were run."""

    title: str
    mode: str
    models: tuple[Model, ...] = ()

    def shows(self, cell: Cell) -> bool:
        """Whether a cell belongs here."""
        names = {model.name for model in self.models}
        return cell.mode == self.mode and (not names or cell.model in names)

    def has(self, op: str) -> bool:
        """Whether its models have layers of this op."""
        return not self.models or any(op in model.ops for model in self.models)


COLUMNS = (
    Column("CPU eager, dense", EAGER, DENSE),
    Column("CPU eager, MoE", EAGER, (EXPERTS,)),
    Column("CPU eager, MLA", EAGER, (LATENT,)),
    Column("CPU compiled, MoE", COMPILED, (EXPERTS,)),
    Column("H200 eager", H200_EAGER),
    Column("H200 graphs", H200_GRAPHS),
)

INTRODUCTION = """\
# What is supported, and by what that is known

Made by `infera-compat matrix support` from `matrix/results` and `matrix/contracts`; `make matrix`
runs all of it again. A row is an op by a seam, asked for by `INFERA_ATTENTION_SEAM` or
`INFERA_MOE_SEAM` with the kernel `passthrough`; a column is a mode, and the models run in it.

| status | |
|---|---|
{meanings}

Models, all of random weights: {models}. A number in brackets is a reason below the table.
"""


@dataclass
class Notes:
    """The numbered reasons below a table."""

    texts: list[str] = field(default_factory=list)

    def mark(self, status: str, reasons: Iterable[str]) -> str:
        """The status, with the numbers of its reasons."""
        numbers = []
        for reason in dict.fromkeys(reasons):
            if reason not in self.texts:
                self.texts.append(reason)
            numbers.append(self.texts.index(reason) + 1)
        marks = ", ".join(str(number) for number in sorted(numbers))
        return f"{status} ({marks})" if marks else status

    def lines(self) -> Iterator[str]:
        """The reasons, a list item each."""
        for number, text in enumerate(self.texts, start=1):
            yield f"{number}. {_flat(text)}"


@dataclass(frozen=True)
class Release:
    """All that is known of a release.

    body: its recorded result. contract: whether its source is recorded under its shim, which a test
    holds against the shim's contracts.
    """

    line: Line
    body: Mapping[str, Any] | None
    contract: bool

    @property
    def cells(self) -> list[Cell]:
        """The recorded cells."""
        return results.recorded_cells(self.body)

    def at(self, op: str, seam: str, column: Column) -> list[Cell]:
        """What is known of an op by a seam in a column; never nothing."""
        shown = [x for x in self.cells if x.op == op and column.shows(x)]
        by_name = [x for x in shown if x.seam == seam]
        by_auto = [x for x in shown if x.seam == AUTO and x.by == (seam,) and x.status == EQUAL]
        if by_name:
            return by_name
        if by_auto:
            return by_auto
        if column.mode == COMPILED:
            # Which layers come by a seam is settled when the model is made, before it is compiled.
            eager = [x for x in self.at(op, seam, replace(column, mode=EAGER)) if x.model]
            if eager and all(x.status == NOT_APPLICABLE for x in eager):
                return [replace(x, reason=f"run eager: {x.reason}") for x in eager]
        told = BY_CONTRACT if self.contract else NOT_RUN
        return [Cell(op, seam, "", column.mode, told, self._why_missing(column))]

    def _why_missing(self, column: Column) -> str:
        run = [x for x in self.cells if x.mode == column.mode]
        if not run:
            missing = f"no run of this release in this mode ({column.mode}) is recorded"
        else:
            names = dict.fromkeys(x.seam for x in run)
            missing = f"{column.mode}: asked for were only {', '.join(names)}"
        return missing if self.contract else f"{missing}, and matrix/contracts has no record of it"


def known(checkout: Checkout) -> list[Release]:
    """What is known of each release of the list, newest first."""
    return [
        Release(
            line,
            results.read(checkout, line.release),
            _is_recorded(checkout, line),
        )
        for line in reversed(releases.read(checkout.releases))
    ]


def document(found: Sequence[Release]) -> str:
    """SUPPORT.md."""
    models = ", ".join(f"{model.name} ({model.note})" for model in MODELS)
    meanings = {**MEANINGS, NO_SUCH_LAYERS: "the column's models have no layers of this op"}
    rows = "\n".join(f"| {status} | {said} |" for status, said in reversed(meanings.items()))
    parts = [INTRODUCTION.format(meanings=rows, models=models), summary(found)]
    parts += ["\n".join(_section(release)) for release in found]
    return "\n".join(parts).rstrip() + "\n"


def summary(found: Sequence[Release]) -> str:
    """The table of all releases: how many seams of each op are equal to stock."""
    rows = [
        "| release | shim | attention | MLA | MoE | compiled | H200 |",
        "|---|---|---|---|---|---|---|",
    ]
    eager = {column.models: column for column in COLUMNS if column.mode == EAGER}
    compiled = [column for column in COLUMNS if column.mode == COMPILED]
    gpu = [column for column in COLUMNS if column.mode in (H200_EAGER, H200_GRAPHS)]
    for release in found:
        name = release.line.release
        if release.line.operators is not None:
            name += f" ({release.line.label})"
        values = (
            name,
            release.line.shim,
            _seams(release, (ATTENTION,), [eager[DENSE], eager[(EXPERTS,)]]),
            _seams(release, (ATTENTION,), [eager[(LATENT,)]]),
            _seams(release, (MOE,), [eager[(EXPERTS,)], eager[(LATENT,)]]),
            _seams(release, (ATTENTION, MOE), compiled),
            _seams(release, (ATTENTION, MOE), gpu),
        )
        rows.append(f"| {' | '.join(values)} |")
    return "\n".join(rows) + "\n"


def readme_block(found: Sequence[Release]) -> str:
    """What the README has between its two comments, both included."""
    said = (
        "How many of the seams that apply were run and gave stock's tokens and logprobs to the "
        "bit, eager on\na CPU unless it says otherwise. Each one, and why others did not: "
        "[matrix/SUPPORT.md](matrix/SUPPORT.md)."
    )
    return f"{BEGIN}\n{said}\n\n{summary(found)}{END}"


def in_readme(text: str, block: str) -> str:
    """The README's text with this block; raises CompatError where its two comments are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CompatError(
            "README.md has no place for the matrix",
            found="not both of its comments",
            expected=f"{BEGIN} and {END}",
            do="Put them where the table is to stand.",
        )
    return f"{before}{block}{after}"


def write(checkout: Checkout) -> tuple[Path, Path]:
    """Write both, and return their paths."""
    found = known(checkout)
    support, readme = checkout.root / "matrix/SUPPORT.md", checkout.root / "README.md"
    text = in_readme(readme.read_text("utf-8"), readme_block(found))
    files.put(support, document(found))
    files.put(readme, text)
    return support, readme


def _is_recorded(checkout: Checkout, line: Line) -> bool:
    file = checkout.contracts / f"{line.release}.json"
    return file.is_file() and files.load(file).get("shim") == line.shim


def _seams(release: Release, ops: Sequence[str], columns: Sequence[Column]) -> str:
    """How many of the ops' seams that apply are equal in one of the columns; if none, why not."""
    statuses = {
        (op, seam): {cell.status for column in columns for cell in release.at(op, seam, column)
                     if column.has(op)}
        for op in ops
        for seam in SEAMS[op]
    }  # fmt: skip
    applying = [found for found in statuses.values() if found != {NOT_APPLICABLE}]
    # One that failed in any of the columns is not equal, whatever it is in the others.
    equal = sum(EQUAL in found and UNEQUAL.isdisjoint(found) for found in applying)
    if equal:
        return f"{equal} of {len(applying)}"
    return _worst_of(*(status for found in statuses.values() for status in found))


def _section(release: Release) -> Iterator[str]:
    line, body = release.line, release.body
    yield f"\n## {line.release}\n"
    yield f"Shim `{line.shim}`. {_what_ran(line, body)}\n"
    notes = Notes()
    yield f"| op | seam | {' | '.join(column.title for column in COLUMNS)} |"
    yield "|---" * (2 + len(COLUMNS)) + "|"
    for op, seams in SEAMS.items():
        for seam in (AUTO, *seams):
            values = [_shown(release, op, seam, column, notes) for column in COLUMNS]
            yield f"| {op} | {seam} | {' | '.join(values)} |"
    yield ""
    yield from notes.lines()
    if body is not None:
        yield "\nNot run:\n"
        for entry in body["not_run"]:
            yield f"- {_flat(entry['what'])}: {_flat(entry['why'])}"
        if not any(column.shows(cell) for column in COLUMNS[-2:] for cell in release.cells):
            yield "- H200: no run of this release is recorded"
        yield from gpu.told(body)


def _what_ran(line: Line, body: Mapping[str, Any] | None) -> str:
    if body is None:
        return f"On a CPU it would be run as {line.label}; no run is recorded."
    dirty = ", with sources that were not committed" if body["dirty"] else ""
    held = body["contracts"]
    contracts = f" Contracts held: {held['held']} of {held['of']}." if held else ""
    return (
        f"Run on a CPU as **{body['label']}**, torch {body['torch']}, Python {body['python']}, "
        f"{body['cpu']}, {body['date']}, at {body['commit']}{dirty}.{contracts}"
    )


def _shown(release: Release, op: str, seam: str, column: Column, notes: Notes) -> str:
    if not column.has(op):
        return NO_SUCH_LAYERS
    cells = release.at(op, seam, column)
    status = _worst_of(*(cell.status for cell in cells))
    reasons = [cell.reason for cell in cells if cell.reason and cell.status == status]
    if seam == AUTO:
        by = dict.fromkeys(name for cell in cells for name in cell.by)
        status += f": {', '.join(by)}" if by else ""
    elif any(cell.seam == AUTO for cell in cells):
        reasons.append("asked for as auto, which took this seam")
    return notes.mark(status, reasons)


def _worst_of(*statuses: str) -> str:
    return min(statuses, key=STATUSES.index)


def _flat(text: str) -> str:
    """A reason as one line of Markdown, in which nothing is taken for markup."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("_", "\\_")
