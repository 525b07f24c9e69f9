"""What a kernel reads and writes, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.cases import Case, compare
from infera_compat.kernels.conformance.outcome import NotRun, Trial
from infera_compat.kernels.conformance.subject import Subject, Wanted


def poison(subject: Subject) -> Iterator[Trial]:
    """Outputs are NaN before: each used row is written, and nothing around the tensors is."""
    for case in subject.made(subject.cases.simple()):
        written = buffers.outputs(case.call) | buffers.scratch(case.call)
        buffers.poison(written.values())
        before = buffers.copies(written)
        trial = subject.tried(case)
        spilled = buffers.spilled(written, before)
        problem = f"wrote outside {', '.join(spilled)}" if spilled else None
        yield trial if trial.problem else replace(trial, problem=problem)


def padding(subject: Subject) -> Iterator[Trial]:
    """Padding is NaN before: nothing of it reaches a used row."""
    for case in subject.made(subject.cases.padded()):
        yield subject.tried(case)


def canaries(subject: Subject) -> Iterator[Trial]:
    """What belongs to nobody, then what is the other requests', is NaN, and stays as it is."""
    for case in subject.made(subject.cases.canaries()):
        yield _untouched(subject, case)
        for what, call, rows in subject.cases.isolated(case):
            name = f"{case.name}: {what}"
            yield _untouched(subject, Case(name, subject.equipped(call), rows, case.plan))


def inputs(subject: Subject) -> Iterator[Trial]:
    """Every input has the same bytes after a run as before it."""
    for case in subject.made(subject.cases.simple()):
        yield _untouched(subject, case)


def _untouched(subject: Subject, case: Case) -> Trial:
    """Inputs are looked at first: what is expected of changed ones says nothing."""
    read = buffers.inputs(case.call)
    before = buffers.copies(read)
    subject.serve(case)
    changed = buffers.changed(read, before)
    if changed:
        return Trial(case.name, f"changed {', '.join(changed)}")
    return subject.compared(case)


def workspace(subject: Subject) -> Iterator[Trial]:
    """As many bytes as were asked for are enough, whatever they hold and wherever they lie."""
    most = 0
    for case in subject.made(subject.cases.simple()):
        spec, sizes = case.call.spec, subject.cases.sizes
        wanted = subject.prepared(spec)
        count = wanted.workspace
        most = max(most, count)
        again = Wanted.by(subject.kernel, spec, sizes)
        text = f"asks for {wanted}, then for {again}" if again != wanted else None
        yield Trial(f"{case.name}: what is asked for", text)
        less = Wanted.by(subject.kernel, spec, replace(sizes, tokens=1))
        if less.workspace > count or less.counters > wanted.counters:
            text = f"asks for {less} for 1 token, and {wanted} for {sizes.tokens}"
            yield Trial(f"{case.name}: fewer tokens", text)
        for content in (0x00, 0xFF):
            name = f"{case.name}: workspace full of {content:#04x}"
            yield _within(subject, replace(case, name=name), count, content)
        name = f"{case.name}: workspace larger than asked for"
        yield _within(subject, replace(case, name=name), count + 512, 0xFF)
    if most:
        yield Trial("bytes", note=f"{most} bytes at most")


def _within(subject: Subject, case: Case, count: int, content: int) -> Trial:
    if not subject.prepared(case.call.spec).workspace:
        return subject.tried(case)
    space = buffers.scratch_bytes(count, subject.device)
    buffers.memory(space).fill_(content)
    before = buffers.copies({"workspace": space})
    call = replace(case.call, workspace=space)
    buffers.poison(buffers.outputs(call).values())
    subject.run(call, case.name)
    trial = subject.compared(replace(case, call=call))
    if buffers.spilled({"workspace": space}, before):
        return Trial(case.name, f"wrote outside the {count} bytes of its workspace")
    return trial


def offsets(subject: Subject) -> Iterator[Trial]:
    """Offsets into a cache, or into weights, that 32 bits do not hold."""
    for case in subject.made(subject.cases.reaching()):
        needed = subject.cases.far_bytes(case, subject.far)
        if subject.device.type == "cuda":
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(subject.device)[0]
            if free < needed:
                raise NotRun(f"{needed >> 30} GiB of memory needed, {free >> 30} free")
        want = subject.cases.expected(case.call)
        far = subject.cases.far(case, subject.far)
        if far is None:
            continue
        if subject.kernel.supports(far.spec) is not None:
            continue
        call = subject.equipped(far)
        buffers.poison((buffers.outputs(call) | buffers.scratch(call)).values())
        subject.run(call, case.name)
        yield compare(
            f"{case.name}, past {subject.far} elements",
            buffers.outputs(call),
            want,
            case.used,
            call.spec.dtype,
        )
        del far, call
