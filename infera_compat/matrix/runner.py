"""Runs the matrix: releases side by side, the ways of each one after the other."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from infera_compat.errors import CompatError
from infera_compat.matrix import records, results
from infera_compat.matrix.cells import FAILED, NOT_RUN, Cell
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.environments import Echo, Environments, Wheel, build
from infera_compat.matrix.records import Record, Records
from infera_compat.matrix.releases import Line
from infera_compat.matrix.ways import MODELS, WAYS, Way
from infera_shims.engines import child

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What stops a run: Ctrl-C, and `kill`."""


class Screen(Protocol):
    """Is told what happens; `slot` numbers the releases that run side by side from 0."""

    def begin(self, slot: int, line: Line, what: str, mode: str | None) -> Echo:
        """Something began; returns what to call with each line that its process prints."""

    def end(self, slot: int, line: Line, what: str, mode: str | None, record: Record) -> None:
        """A way ended, or was found recorded (then nothing began)."""

    def failed(self, line: Line, what: str, reason: str) -> None:
        """A release can't go on."""

    def again(self, line: Line, what: str, reason: str) -> None:
        """A way is run again though it was recorded."""


@dataclass
class Outcome:
    """What a run of the matrix came to.

    cells: of each release. failures: why a release could not go on, or be written. stopped: the
    signal that ended it.
    """

    cells: dict[str, list[Cell]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: signal.Signals | None = None

    @property
    def status(self) -> int:
        """The exit status: 0 only where all ran and is written, 1 where not, or the signal's."""
        if self.stopped is not None:
            return 128 + self.stopped
        return int(bool(self.bad or self.failures or not self.cells))

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

        Ends early on a signal of SIGNALS: the engines too, and what is recorded stays. Raises
        CompatError or ChildError where nothing can be run at all.
        """
        with self._stopped_by_signals(), suppress(child.Stopped):
            self._run(lines)
        if self.outcome.stopped is None:
            for line in lines:  # a thread that died leaves some: nobody knows of them
                unknown = results.cells({}, "its thread ended before it")
                self.outcome.cells.setdefault(line.release, unknown)
        return self.outcome

    def _run(self, lines: Sequence[Line]) -> None:
        wheel = build(self.checkout, self.stop)
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
        for thread in threads:
            thread.join()

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Handlers of our own: what a shell starts in the background has SIGINT ignored."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.outcome.stopped = signal.Signals(number)
            self.stop.set()

        before = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

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
        """Run what is not recorded; the result is written after each way.

        Raises nothing, since its thread has other releases to run: what fails, fails this one.
        """
        try:
            results.measured(self._matrix.checkout, self._line.release)  # or hours would be lost
            self._find_recorded()
            self._run_missing()
        except child.Stopped:
            pass
        except child.ChildError as error:
            reason = records.cause(str(error).splitlines()) or str(error).splitlines()[0]
            self._fail("environment", reason, str(error))
        except Exception as error:  # noqa: BLE001
            self._fail("stopped", _told(error))
        try:
            self._write()
        except Exception as error:  # noqa: BLE001
            if self._obstacle is None:
                self._fail("result", _told(error))

    def _fail(self, what: str, reason: str, told: str | None = None) -> None:
        self._obstacle = self._matrix.outcome.failures[self._line.release] = reason
        self._matrix.screen.failed(self._line, what, told or reason)

    def _find_recorded(self) -> None:
        screen = self._matrix.screen
        for way in () if self._matrix.fresh else WAYS:
            try:
                record = self._kept.find(way, self._keys[way])
            except CompatError as error:
                screen.again(self._line, way.name, f"{error.what}: {error.found}")
                continue
            if record is not None:
                self._found[way] = record
                screen.end(self._slot, self._line, way.name, way.mode, record)

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
        self._matrix.outcome.cells[release] = results.cells(found, self._obstacle)
        body = results.result(self._line, self._wheel, found, self._obstacle)
        results.write(checkout, release, body)


def _keep_to(slot: int, jobs: int) -> None:
    """Keep this thread, and what it starts, to its share of the processors.

    vLLM binds the threads of its workers to processors by itself, two engines to the same ones: it
    counts what its process may use, and does not see the other.
    """
    allowed = sorted(os.sched_getaffinity(0))
    share = allowed[slot::jobs]
    if share:
        os.sched_setaffinity(0, share)


def _told(error: Exception) -> str:
    """What happened, in a line."""
    if isinstance(error, CompatError):
        return f"{error.what}. Found: {error.found}. {error.do}"
    return f"{type(error).__name__}: {error}"
