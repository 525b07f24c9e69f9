"""What `matrix check` shows: the release, each seam, what moved side by side, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infera_compat.cli.finding import Change, Finding, Judgement, Seam, Shift
from infera_compat.definitions import Definition

STYLES = {
    Judgement.SUPPORTED: "bold green",
    Judgement.HARMLESS: "bold green",
    Judgement.OUTSIDE: "bold yellow",
    Judgement.REFUSED: "bold red",
}
MOST_TOLD = 8
"""How many changes of a kind are told of one symbol; --json has all."""

_WORD = re.compile(r"[\w.*=]+")


def show(finding: Finding, console: Console) -> None:
    """Print a finding for a person."""
    console.print(Text(_header(finding)), soft_wrap=True)
    console.print(_seams(finding.seams))
    if finding.shifts:
        console.print(Text("Moved", style="bold"))
        for shift in finding.shifts:
            _show_shift(shift, finding.release, console)
    if finding.harmless:
        console.print(_harmless(finding.harmless, finding.against))
    console.print(Text(_verdict(finding), style=STYLES[finding.judgement]), soft_wrap=True)


def _header(finding: Finding) -> str:
    first, last = finding.supported[0], finding.supported[-1]
    where = "in" if finding.inside else "outside"
    return (
        f"vLLM {finding.release}, {where} the supported range {first} to {last}: "
        f"shim {finding.shim}, contracts {finding.verdict.held}/{finding.verdict.of}"
    )


def _verdict(finding: Finding) -> str:
    text = f"vLLM {finding.release}: {finding.judgement.value}"
    if finding.shifts and not finding.inside:
        text += "; and it is outside the supported range"
    return f"{text} ({finding.seconds:.1f} s)"


def _seams(seams: Iterable[Seam]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("op", "seam", "taken on", "held", ""):
        table.add_column(name, overflow="fold", no_wrap=name == "seam")  # a name is never cut
    for seam in seams:
        table.add_row(
            seam.op,
            seam.name,
            " ".join(seam.taken_on),
            f"{seam.held}/{seam.of}",
            Text(f"{len(seam.moved)} moved", style="red")
            if seam.moved
            else Text("holds", style="green"),
        )
    return table


def _show_shift(shift: Shift, release: str, console: Console) -> None:
    need = shift.moved.need
    console.print(
        Text.assemble(
            "\n",
            (need.symbol, "bold"),
            f" ({need.why})\n",
            (f"for {', '.join(shift.seams)}", "dim"),
        ),
        soft_wrap=True,
    )
    old = need.describe() if shift.old is None else _written(shift.old)
    new = _absent(shift) if shift.moved.found is None else _written(shift.moved.found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column(shift.old_release or "needed", ratio=1, overflow="fold")
    table.add_column(release, ratio=1, overflow="fold")
    if shift.moved.found is None:
        table.add_row(Text(old), Text(new, style="red"))
    else:
        table.add_row(_marked(old, new, "green"), _marked(new, old, "red"))
    console.print(table)


def _written(definition: Definition) -> str:
    """A definition by its last names; the heading has the whole symbol."""
    return replace(definition, symbol=definition.symbol.partition(":")[2]).describe()


def _absent(shift: Shift) -> str:
    module, _, name = shift.moved.need.symbol.partition(":")
    outer, _, member = name.partition(".")
    file = "/".join(module.split(".")[1:])
    if member and any(place.startswith(file) for place in shift.elsewhere):
        return f"not there; {outer} is, at {shift.elsewhere[0]}"
    if shift.elsewhere:
        return f"not there; a {outer} is at {', '.join(shift.elsewhere[:MOST_TOLD])}"
    return f"not there, and no {outer} in any other file"


def _marked(text: str, other: str, style: str) -> Text:
    """The text, with the words that the other one lacks in colour."""
    words = set(_WORD.findall(other))
    marked = Text(text)
    for match in _WORD.finditer(text):
        if match[0] not in words:
            marked.stylize(style, *match.span())
    return marked


def _harmless(harmless: Iterable[Change], against: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Moved harmlessly since {against}",
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("symbol", overflow="fold", ratio=2)
    table.add_column("what", overflow="fold", ratio=3)
    for change in harmless:
        table.add_row(Text(change.symbol), Text("\n".join(_short(change.changes))))
    return table


def _short(changes: Iterable[str]) -> Iterator[str]:
    for change in changes:
        parts = change.split(", ")
        left = len(parts) - MOST_TOLD
        yield change if left <= 0 else f"{', '.join(parts[:MOST_TOLD])}, and {left} more"
