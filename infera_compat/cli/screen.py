"""What the demo shows: its steps while they run, the start-up lines, the tables, the verdict."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from infera_compat.cli.proof import Comparison, Row, Run


@dataclass
class StartLines:
    """Picks the plugin's lines out of an engine's output.

    vLLM puts its prefix (level, time, file) before each line of a message, so a line goes on with a
    message of ours as long as it has the prefix of the message's first line and is indented.
    """

    lines: list[str] = field(default_factory=list)
    _prefix: str | None = None

    # A path may hold the name as well, but has no blank before it.
    _OURS = re.compile(r"(?:^|(?<=\s))infera-compat[ :]")
    _COLOUR = re.compile(r"\x1b\[[0-9;]*m")

    def take(self, line: str) -> None:
        """Look at the next line of the output."""
        plain = self._COLOUR.sub("", line)
        match = self._OURS.search(plain)
        if match:
            self._prefix = plain[: match.start()]
        elif self._prefix is None or not plain.startswith(self._prefix + "  "):
            self._prefix = None
            return
        self.lines.append(plain)


class Steps:
    """The steps on the screen: a live line each, or plain lines where there is no terminal."""

    def __init__(self, console: Console, total: int) -> None:
        """Count to `total`."""
        self._console = console
        self._total = total
        self._number = 0
        self._live = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TextColumn(
                "{task.fields[last]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            expand=True,
        )

    def __enter__(self) -> Steps:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing; the steps stay on the screen."""
        if self._console.is_terminal:
            self._live.stop()

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """One step; yields what to call with each line that its process prints."""
        self._number += 1
        title = f"{self._number}/{self._total} {what}"
        began = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{title} …", markup=False, highlight=False)
            yield _ignore
            took = time.monotonic() - began
            self._console.print(f"{title}: {took:.0f} s", markup=False, highlight=False)
            return
        task: TaskID = self._live.add_task(title, total=1, last="")

        def show(line: str) -> None:
            self._live.update(task, last=line.strip())

        yield show
        self._live.update(task, completed=1, last="")


def show(
    console: Console,
    question: str,
    answer: str,
    runs: Sequence[Run],
    comparisons: Sequence[Comparison],
    rows: Sequence[Row],
    found: Sequence[str],
) -> None:
    """Print the chat, the start-up lines, the tables, and what was found wrong or the verdict."""
    console.print(Text.assemble(("\nQuestion  ", "dim"), question))
    console.print(Text.assemble(("Answer    ", "dim"), (answer, "bold")))
    for run in runs:
        switches = " ".join(f"{name}={value}" for name, value in run.mode.switches.items())
        console.print(Text(f"\nvLLM {run.vllm}, {run.mode.name}: {switches}", style="bold"))
        for line in run.start_lines or ["(the plugin printed nothing)"]:
            console.print(Text(line), soft_wrap=True)
    console.print(_calls_table(rows))
    console.print(_comparison_table(comparisons))
    if found:
        console.print(Text("Failed: this proves nothing yet.", style="bold red"))
        for problem in found:
            console.print(Text(f"  {problem}", style="red"), soft_wrap=True)
        return
    values = sum(x.values for x in comparisons)
    calls = sum(row.serving * row.count for row in rows)
    console.print(
        Text(
            f"Passed: bound code ran {calls} times in serving steps, and every token and all "
            f"{values} logprobs are the same, to the bit, as with the plugin off.",
            style="bold green",
        ),
        soft_wrap=True,
    )


def _calls_table(rows: Iterable[Row]) -> Table:
    """One table for all modes and models: 95 columns wide where nothing has to be folded."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Calls of each layer, by phase",
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("op", "layer", "over", "seam"):
        table.add_column(name, overflow="fold")
    for name in ("serving", "profile", "capture"):
        table.add_column(name, justify="right")
    for (mode, model), alike in groupby(rows, lambda row: (row.mode, row.model)):
        table.add_section()
        table.add_row(Text(mode, style="bold"), Text(model, style="bold"))
        for row in alike:
            calls = (str(row.serving), str(row.profile), str(row.capture))
            values = (row.op, row.layers, row.over, row.seam, *calls)
            table.add_row(*(Text(value) for value in values))
    return table


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title="Against the plugin switched off", title_justify="left"
    )
    for name in ("model", "mode", "tokens", "logprobs"):
        table.add_column(name)
    for name in ("logprobs compared", "distinct tokens"):
        table.add_column(name, justify="right")
    for x in comparisons:
        table.add_row(
            x.model,
            x.mode,
            _verdict(x.tokens_equal),
            _verdict(x.logprobs_equal),
            str(x.values),
            str(x.distinct),
        )
    return table


def _verdict(equal: bool) -> Text:
    return Text("equal", style="green") if equal else Text("DIFFER", style="red")


def _ignore(line: str) -> None:
    return None
