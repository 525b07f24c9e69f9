"""Runs the matrix: releases side by side, the ways of each one after the other."""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infera_compat.matrix import records, results
from infera_compat.matrix.cells import FAILED, NOT_RUN, Cell
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.environments import Echo, Environments, Wheel, build
from infera_compat.matrix.records import Record, Records
from infera_compat.matrix.releases import Line
from infera_compat.matrix.ways import MODELS, WAYS, Way
from infera_shims.engines import child


class Screen(Protocol):
    """Is told what happens; `slot` numbers the releases that run side by side from 0."""

    def begin(self, slot: int, line: Line, what: str, mode: str | None) -> Echo:
        """Something began; returns what to call with each line that its process prints."""

    def end(self, slot: int, line: Line, what: str, mode: str | None, record: Record) -> None:
        """A way ended, or was found recorded (then nothing began)."""

    def failed(self, line: Line, what: str, reason: str) -> None:
        """A release can't go on."""


@dataclass
class Outcome:
    """What a run of the matrix came to: the cells of each release, and whether it was stopped."""

    cells: dict[str, list[Cell]] = field(default_factory=dict)
    stopped: bool = False

    @property
    def bad(self) -> list[tuple[str, Cell]]:
        """The cells that failed or could not be run, with their releases."""
        return [
            (release, cell)
            for release, cells in self.cells.items()
            for cell in cells
            if cell.status in (FAILED, NOT_RUN)
        ]

    def counts(self) -> dict[str, dict[str, int]]:
        """How many cells of each release have each status."""
        return {
            release: dict(Counter(cell.status for cell in cells))
            for release, cells in self.cells.items()
        }


class Matrix:
    """One run of the matrix."""

    def __init__(self, checkout: Checkout, screen: Screen, *, jobs: int, fresh: bool) -> None:
        """Run `jobs` releases at once; `fresh`: run again what is recorded already."""
        self.checkout, self.screen = checkout, screen
        self.jobs, self.fresh = jobs, fresh
        self.stop = threading.Event()
        self.outcome = Outcome()

    def run(self, lines: Sequence[Line]) -> Outcome:
        """Run these releases, newest first, and write each one's result as it grows.

        Raises CompatError or ChildError where nothing can be run at all.
        """
        wheel = build(self.checkout)
        environments = Environments(self.checkout, wheel, self.stop)
        waiting: queue.SimpleQueue[Line] = queue.SimpleQueue()
        for line in reversed(lines):
            waiting.put(line)
        threads = [
            threading.Thread(target=self._work, args=(slot, waiting, environments, wheel))
            for slot in range(min(self.jobs, len(lines)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.stop.set()  # ends the engines; what is recorded stays
            for thread in threads:
                thread.join()
            self.outcome.stopped = True
        return self.outcome

    def _work(
        self,
        slot: int,
        waiting: queue.SimpleQueue[Line],
        environments: Environments,
        wheel: Wheel,
    ) -> None:
        _keep_to(slot, self.jobs)
        while not self.stop.is_set():
            try:
                line = waiting.get_nowait()
            except queue.Empty:
                return
            _Run(self, slot, line, environments, wheel).go()


class _Run:
    """One release being run."""

    def __init__(
        self, matrix: Matrix, slot: int, line: Line, environments: Environments, wheel: Wheel
    ) -> None:
        self._matrix, self._slot, self._line = matrix, slot, line
        self._environments, self._wheel = environments, wheel
        self._folder = matrix.checkout.cache / line.release
        self._kept = Records(self._folder)
        self._keys = {way: records.key(line, way, wheel.source) for way in WAYS}
        self._found: dict[Way, Record] = {}
        self._obstacle: str | None = None

    def go(self) -> None:
        """Run what is not recorded; the result is written after each way."""
        screen = self._matrix.screen
        for way in () if self._matrix.fresh else WAYS:
            record = self._kept.find(way, self._keys[way])
            if record is not None:
                self._found[way] = record
                screen.end(self._slot, self._line, way.name, way.mode, record)
        try:
            self._run_missing()
        except child.Stopped:
            pass
        except child.ChildError as error:
            self._obstacle = records.cause(str(error).splitlines()) or str(error).splitlines()[0]
            screen.failed(self._line, "environment", str(error))
        self._write()

    def _run_missing(self) -> None:
        missing = [way for way in WAYS if way not in self._found]
        if not missing:
            return
        begin = self._matrix.screen.begin
        echo = begin(self._slot, self._line, "environment", None)
        python = self._environments.make(self._line, echo)
        kinds = tuple(model.name for model in MODELS)
        folders = self._environments.models(python, kinds, echo)
        for way in missing:
            record = records.run(
                way,
                self._keys[way],
                python,
                folders,
                self._folder / "vllm",
                begin(self._slot, self._line, way.name, way.mode),
                self._matrix.stop,
            )
            self._kept.keep(way, record)
            self._found[way] = record
            self._matrix.screen.end(self._slot, self._line, way.name, way.mode, record)
            self._write()

    def _write(self) -> None:
        checkout, release = self._matrix.checkout, self._line.release
        found = {way: self._found[way] for way in WAYS if way in self._found}
        body = results.result(self._line, self._wheel, found, self._obstacle)
        results.write(checkout, release, body)
        self._matrix.outcome.cells[release] = results.cells(found, self._obstacle)


def _keep_to(slot: int, jobs: int) -> None:
    """Keep this thread, and what it starts, to its share of the processors.

    vLLM binds the threads of its workers to processors by itself, two engines to the same ones: it
    counts what its process may use, and does not see the other.
    """
    allowed = sorted(os.sched_getaffinity(0))
    share = allowed[slot::jobs]
    if share:
        os.sched_setaffinity(0, share)
