"""The matrix on the screen: what runs, how many ways are left, and for how long."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from infera_compat.matrix.cells import STATUSES
from infera_compat.matrix.environments import Echo
from infera_compat.matrix.records import Record
from infera_compat.matrix.releases import Line
from infera_compat.matrix.runner import Outcome
from infera_compat.matrix.ways import WAYS

INDENT = "  "


class Estimate:
    """How long what is left will take, by what the ways of each mode took until now."""

    def __init__(self, releases: int, jobs: int) -> None:
        """Nothing is done yet."""
        self._jobs = min(jobs, releases)
        self._left: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        for way in WAYS:
            self._left[way.mode] += releases

    @property
    def left(self) -> int:
        """How many ways are left."""
        return sum(self._left.values())

    def take(self, mode: str, seconds: float) -> None:
        """A way took so long, now or when it was recorded."""
        self._left[mode] -= 1
        self._seconds[mode].append(seconds)

    def minutes(self) -> float | None:
        """The time left; None before a way of each mode that is left has ended."""
        total = 0.0
        for mode, left in self._left.items():
            known = self._seconds[mode]
            if left and not known:
                return None
            total += left * sum(known) / len(known) if left else 0.0
        return total / self._jobs / 60


class LiveScreen:
    """A bar for all, a line for each release that runs; plain lines where there is no terminal."""

    def __init__(self, console: Console, releases: int, jobs: int) -> None:
        """Be ready for that many releases, `jobs` of them at once."""
        self._console = console
        self._estimate = Estimate(releases, jobs)
        self._lock = threading.Lock()
        self._live = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
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
        self._all = self._live.add_task("matrix", total=self._estimate.left, last="")
        self._tasks: dict[int, TaskID] = {}
        self._ended: set[tuple[str, str]] = set()
        self._began: set[tuple[str, str]] = set()

    def __enter__(self) -> LiveScreen:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing."""
        if self._console.is_terminal:
            self._live.stop()

    def begin(self, slot: int, line: Line, what: str, mode: str | None) -> Echo:
        """A way, or the making of an environment, began in a slot."""
        title = f"{line.release}  {what}"
        with self._lock:
            self._began.add((line.release, what))
            if slot in self._tasks:
                self._live.remove_task(self._tasks.pop(slot))
            task = self._tasks[slot] = self._live.add_task(title, total=None, last="")
            if not self._console.is_terminal:
                self._say(f"{title} …", bad=False)
        began = time.monotonic()

        def echo(text: str) -> None:
            # A line every now and then: an engine prints hundreds while it starts.
            nonlocal began
            if time.monotonic() - began > 0.2:
                began = time.monotonic()
                with self._lock:
                    if self._tasks.get(slot) == task:
                        self._live.update(task, last=text.strip())

        return echo

    def end(self, slot: int, line: Line, what: str, mode: str | None, record: Record) -> None:
        """A way ended, or was recorded before."""
        with self._lock:
            if mode is not None:
                self._estimate.take(mode, record.seconds)
            minutes = self._estimate.minutes()
            left = f"{self._estimate.left} left"
            if minutes is not None:
                left += f", about {minutes:.0f} min"
            self._live.update(self._all, advance=1, last=left)
            if slot in self._tasks:
                self._live.remove_task(self._tasks.pop(slot))
            recorded = (line.release, what) not in self._began
            verdict = f"failed: {record.error}" if record.error else f"{record.seconds:.0f} s"
            said = "recorded before" if recorded else verdict
            self._say(f"{line.release}  {what}: {said}  ({left})", bad=record.error is not None)

    def failed(self, line: Line, what: str, reason: str) -> None:
        """A release can't go on."""
        with self._lock:
            self._say(f"{line.release}  {what}: {reason}", bad=True)

    def again(self, line: Line, what: str, reason: str) -> None:
        """A way is run again though it was recorded."""
        with self._lock:
            self._say(f"{line.release}  {what}: run again, {reason}", bad=True)

    def _say(self, text: str, bad: bool) -> None:
        self._console.print(Text(text, style="red" if bad else ""), soft_wrap=True)


def show(console: Console, outcome: Outcome) -> None:
    """Print how many cells of each release came out how, and each that failed."""
    console.print()
    for release, counts in outcome.counts().items():
        told = ", ".join(f"{counts[status]} {status}" for status in reversed(STATUSES)
                         if status in counts)  # fmt: skip
        console.print(Text(f"{release:8} {told}"), soft_wrap=True)
    for release, reason in outcome.failures.items():
        console.print(Text(f"{release:8} failed: {reason}", style="red"), soft_wrap=True)
    for release, cell in outcome.bad:
        about = f"{release}  {cell.op} by {cell.seam}, {cell.model}, {cell.mode}"
        console.print(Text(f"{cell.status}: {about}: {cell.reason}", style="red"), soft_wrap=True)
    if outcome.stopped is not None:
        console.print(Text("Stopped. The next run goes on from here.", style="bold red"))
    elif outcome.status == 0:
        console.print(
            Text(
                "All that was bound fired, and gave stock's tokens and logprobs to the bit.",
                style="bold green",
            )
        )
