"""`infera-compat verify NAME`: whether a kernel keeps the contract, measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infera_compat.errors import CompatError

if TYPE_CHECKING:
    from infera_compat.kernels.conformance.check import Check
    from infera_compat.kernels.conformance.outcome import Outcome
    from infera_compat.kernels.conformance.record import Record

STYLES = {"pass": "green", "fail": "bold red", "not run": "yellow"}


def verify(
    name: str,
    device: str | None,
    out: Path | None,
    only: Sequence[str],
    seed: int,
    as_json: bool,
    console: Console,
) -> int:
    """Run the checks of a kernel, print what came of them, and return the exit status.

    Args:
        name: an installed kernel, or module:attribute.
        device: "cpu" or "cuda"; None: a GPU where there is one.
        out: the file to write the record to; None: its place in the checkout, if this is one and
            all checks were run.
        only: the names of some checks; all where there is none.
        seed: of the random inputs.
        as_json: print the record.
        console: where a person reads.

    Returns:
        0 where something was checked and nothing failed, else 1.
    """
    try:
        import torch  # noqa: F401 (to say in a word that it is missing)
    except ModuleNotFoundError as error:
        raise CompatError(
            "verify runs the kernel, and this Python has no torch",
            found=str(error),
            expected="torch beside infera-compat, as it is in vLLM's environment",
            do="Run verify there.",
        ) from error
    from infera_compat.kernels.conformance import check, record

    checks = check.chosen(only)
    found, on = record.named(name), record.device(device)
    progress = _Progress(Console(stderr=True) if as_json else console, name, len(checks))
    with progress:
        made = record.make(found, on, seed, only, progress.told)
    where = record.write(made, out, not only)
    if as_json:
        print(json.dumps(made.body, indent=1))
    else:
        _show(made, where, console)
    return 0 if made.passed else 1


class _Progress:
    """A bar while the checks run; nothing where there is no terminal."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._name = name
        self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def told(self, check: Check, outcome: Outcome | None) -> None:
        """Show what runs, or that it has run."""
        if outcome is None:
            self._bar.update(self._task, description=f"{self._name}: {check.name}")
        else:
            self._bar.advance(self._task)


def _show(made: Record, where: Path | None, console: Console) -> None:
    from infera_compat.kernels.conformance import lines

    body = made.body
    machine = body["gpu"] or "a CPU"
    console.print(
        Text(
            f"{body['kernel']} ({body['op']}, of {body['distribution']}) on {machine}, "
            f"torch {body['torch']}, seed {body['seed']}"
        ),
        soft_wrap=True,
    )
    console.print(_table(made))
    for text in lines.refusals(made.refused):
        console.print(Text(f"not counted: {text}", style="dim"), soft_wrap=True)
    style = "bold green" if made.passed else "bold red"
    console.print(Text(lines.closing(made), style=style), soft_wrap=True)
    if where is not None:
        console.print(Text(f"Record: {where}", style="dim"), soft_wrap=True)


def _table(made: Record) -> Table:
    from infera_compat.kernels.conformance import check

    about = {each.name: each.about for each in check.CHECKS}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("s", justify="right")
    table.add_column("that", overflow="fold")
    table.add_column("found", overflow="fold")
    for outcome in made.outcomes:
        table.add_row(
            outcome.check,
            Text(outcome.status, style=STYLES[outcome.status]),
            str(outcome.cases),
            f"{outcome.seconds:.1f}",
            Text(about[outcome.check]),
            Text(outcome.detail),
        )
    return table
