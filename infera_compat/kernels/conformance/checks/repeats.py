"""The same call again: in turn, beside another one, and how long the first one was prepared."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch

from infera_compat.kernels.conformance import buffers, compilations
from infera_compat.kernels.conformance.cases import Case, compare, results
from infera_compat.kernels.conformance.checks.targets import HasTriton
from infera_compat.kernels.conformance.outcome import NotRun, Trial, raised
from infera_compat.kernels.conformance.subject import Subject

REPEATS = 3
ROUNDS = 10
"""How often each thread runs its call."""
PATIENCE = 120.0
"""Seconds that threads are waited for."""


def determinism(subject: Subject) -> Iterator[Trial]:
    """Every repeat writes the same bits."""
    for case in subject.made(subject.cases.simple()):
        runs = []
        for _ in range(REPEATS):
            buffers.poison((buffers.outputs(case.call) | buffers.scratch(case.call)).values())
            subject.run(case.call, case.name)
            runs.append(results(case))
        differ = [
            name
            for name in runs[0]
            if any(not torch.equal(_bits(runs[0][name]), _bits(run[name])) for run in runs[1:])
        ]
        text = f"{', '.join(differ)} has other bits in one of {REPEATS} runs" if differ else None
        yield Trial(case.name, text)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def threads(subject: Subject) -> Iterator[Trial]:
    """Two threads at once, each on a stream of its own: one object serves all layers."""
    if isinstance(subject.kernel, HasTriton) and compilations.interpreted():
        raise NotRun("Triton's interpreter serves one thread")
    others = subject.cases_of(subject.seed + 1)
    plans = [plan for plan in subject.cases.simple() if subject.takes(plan)]
    for mine, other in zip(subject.made(plans), subject.made(plans, others), strict=True):
        start = threading.Barrier(2)
        workers = [_Worker(subject, case, start) for case in (mine, other)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
        subject.wait()
        for worker in workers:
            yield worker.judged()


class _Worker(threading.Thread):
    """Runs a case again and again, and keeps what each round wrote.

    Outputs are NaN before each round: what only some rounds write, or another thread, is seen.
    """

    def __init__(self, subject: Subject, case: Case, start: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._subject, self._case, self._start = subject, case, start
        self._rounds: list[dict[str, torch.Tensor]] = []
        self._problem: str | None = None

    def run(self) -> None:
        self._start.wait()
        try:
            if self._subject.device.type == "cuda":
                stream = torch.cuda.Stream(self._subject.device)
                with torch.cuda.stream(stream):
                    self._serve()
                stream.synchronize()
            else:
                self._serve()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever it raises here)
            self._problem = raised(error)

    def _serve(self) -> None:
        call = self._case.call
        outputs = buffers.outputs(call)
        for _ in range(ROUNDS):
            buffers.poison((outputs | buffers.scratch(call)).values())
            self._subject.kernel.run(call)
            self._rounds.append({name: it.clone() for name, it in outputs.items()})

    def judged(self) -> Trial:
        """What came of it; the worst of all rounds."""
        case = self._case
        if self.is_alive():
            return Trial(case.name, f"has not ended after {PATIENCE:.0f} seconds")
        if self._problem is not None:
            return Trial(case.name, self._problem)
        want = self._subject.cases.expected(case.call)
        dtype = case.call.spec.dtype
        rounds = [compare(case.name, got, want, case.used, dtype) for got in self._rounds]
        wrong = [trial for trial in rounds if trial.problem is not None]
        return max(wrong or rounds, key=lambda trial: trial.error or 0.0)


def warm_up(subject: Subject) -> Iterator[Trial]:
    """It ends, for each spec; how long it took."""
    names = [case.name for case in subject.made(subject.cases.simple())]
    longest, total = max(subject.warm_ups, default=0.0), sum(subject.warm_ups)
    note = f"{len(subject.warm_ups)} specs in {total:.1f} s, one in {longest:.1f} s at most"
    for name in names:
        yield Trial(name, note=note)
