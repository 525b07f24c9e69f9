"""The same call again: in turn, beside another one, and how long the first one was prepared."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch

from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.cases import Case, results
from infera_compat.kernels.conformance.outcome import Trial, raised
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
    others = subject.cases_of(subject.seed + 1)
    plans = [plan for plan in subject.cases.simple() if subject.takes(plan)]
    for mine, other in zip(subject.made(plans), subject.made(plans, others), strict=True):
        both = [mine, other]
        problems = _beside(subject, both)
        for case, problem in zip(both, problems, strict=True):
            yield Trial(case.name, problem) if problem else subject.compared(case)


def _beside(subject: Subject, cases: list[Case]) -> list[str | None]:
    start = threading.Barrier(len(cases))
    problems: list[str | None] = [None] * len(cases)

    def serve(number: int) -> None:
        call = cases[number].call
        start.wait()
        try:
            if subject.device.type == "cuda":
                stream = torch.cuda.Stream(subject.device)
                with torch.cuda.stream(stream):
                    for _ in range(ROUNDS):
                        subject.kernel.run(call)
                stream.synchronize()
            else:
                for _ in range(ROUNDS):
                    subject.kernel.run(call)
        except Exception as error:  # noqa: BLE001 (whatever the kernel raises, in its thread)
            problems[number] = raised(error)

    for case in cases:
        buffers.poison((buffers.outputs(case.call) | buffers.scratch(case.call)).values())
    subject.wait()
    workers = [threading.Thread(target=serve, args=(n,), daemon=True) for n in range(len(cases))]
    for worker in workers:
        worker.start()
    for number, worker in enumerate(workers):
        worker.join(PATIENCE)
        if worker.is_alive():
            problems[number] = f"has not ended after {PATIENCE:.0f} seconds"
    subject.wait()
    return problems


def warm_up(subject: Subject) -> Iterator[Trial]:
    """It ends, for each spec; how long it took."""
    names = [case.name for case in subject.made(subject.cases.simple())]
    longest, total = max(subject.warm_ups, default=0.0), sum(subject.warm_ups)
    note = f"{len(subject.warm_ups)} specs in {total:.1f} s, one in {longest:.1f} s at most"
    for name in names:
        yield Trial(name, note=note)
