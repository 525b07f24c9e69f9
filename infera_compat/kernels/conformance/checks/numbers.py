"""Whether the numbers are right, for all that the kernel says it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.cases import Case, compare
from infera_compat.kernels.conformance.outcome import Trial
from infera_compat.kernels.conformance.subject import Subject


def numerics(subject: Subject) -> Iterator[Trial]:
    """Against the naive expectation in float64."""
    yield from _each(subject, subject.cases.numerics())


def ranks(subject: Subject) -> Iterator[Trial]:
    """The same for the shapes of ranks."""
    yield from _each(subject, subject.cases.ranks())


def paged(subject: Subject) -> Iterator[Trial]:
    """The same for block sizes and layouts, and the caches are what they were."""
    yield from _each(subject, subject.cases.paged())


def strides(subject: Subject) -> Iterator[Trial]:
    """The same with gaps between rows, and nothing is written into the gaps."""
    for case in subject.made(subject.cases.strided()):
        written = buffers.outputs(case.call)
        buffers.poison(written.values())
        before = buffers.copies(written)
        trial = subject.tried(case)
        spilled = buffers.spilled(written, before)
        problem = f"wrote between or around the rows of {', '.join(spilled)}" if spilled else None
        yield trial if trial.problem else replace(trial, problem=problem)


def mixed(subject: Subject) -> Iterator[Trial]:
    """A batch equals its parts: requests alone, and a prompt in chunks."""
    for case in subject.made(subject.cases.mixed()):
        whole = subject.tried(case)
        yield whole
        if whole.problem is not None:
            continue
        for how, parts in subject.cases.parts(case):
            yield _joined(subject, case, how, parts)


def _each(subject: Subject, plans: Iterable[Any]) -> Iterator[Trial]:
    for case in subject.made(plans):
        read = buffers.inputs(case.call)
        before = buffers.copies({name: it for name, it in read.items() if "cache" in name})
        subject.serve(case)
        changed = buffers.changed({name: read[name] for name in before}, before)
        if changed:
            yield Trial(case.name, f"changed {', '.join(changed)}")
        else:
            yield subject.compared(case)


def _joined(subject: Subject, case: Case, how: str, parts: Iterable[Any]) -> Trial:
    name = f"{case.name}: {how}"
    whole = buffers.outputs(case.call)
    worst = 0.0
    for call, rows in parts:
        call = subject.equipped(call)
        subject.run(call, name)
        got = buffers.outputs(call)
        want = {key: it[rows] for key, it in whole.items()}
        trial = compare(name, got, want, case.used[rows], call.spec.dtype)
        if trial.problem is not None:
            return replace(trial, problem=f"another result than in one batch: {trial.problem}")
        worst = max(worst, trial.error or 0.0)
    return Trial(name, error=worst)
