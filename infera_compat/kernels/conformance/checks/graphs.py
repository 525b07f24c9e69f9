"""The CUDA-graph audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from infera_compat.kernels.conformance import buffers, compilations
from infera_compat.kernels.conformance.cases import Case
from infera_compat.kernels.conformance.checks.targets import HasTriton
from infera_compat.kernels.conformance.outcome import NotRun, Trial, raised
from infera_compat.kernels.conformance.subject import Replay, Subject

DEFAULT_POOL = (0, 0)
"""The segments of the allocator that belong to no graph."""
FEW_SIZES = 2
"""Of how many size classes a graph is captured before something larger runs."""
CLOBBERED = 256 << 20
"""Bytes that are overwritten after a capture, to find memory that is used and not held."""


def graphs(subject: Subject) -> Iterator[Trial]:
    """Captured at each size, replayed with other contents and lengths in the same buffers."""
    _capturing(subject)
    for first, others in subject.cases.captured():
        for case in subject.made([first]):
            replay = _recorded(subject, case)
            for other in subject.made(others):
                yield _replayed(subject, case, other, replay)


def workspace_addresses(subject: Subject) -> Iterator[Trial]:
    """A replay is right after larger eager calls, and after free memory was overwritten.

    A kernel that keeps scratch of its own makes it anew for a larger call, and the graph goes on
    with the old one.
    """
    _capturing(subject)
    every = list(subject.cases.captured())
    largest = [plan for plan, _ in every if subject.takes(plan)][-1:]
    for first, others in every[:FEW_SIZES]:
        for case in subject.made([first]):
            asked = subject.kernel.workspace(first.spec, subject.cases.sizes)
            replay = _recorded(subject, case)
            for bigger in subject.made(largest):
                subject.run(bigger.call, bigger.name)
            _clobber(subject)
            again = subject.kernel.workspace(first.spec, subject.cases.sizes)
            if again != asked:
                text = f"asks for {again} bytes after a capture with {asked}"
                yield Trial(case.name, text)
            for other in subject.made(others):
                yield _replayed(subject, case, other, replay)


def allocations(subject: Subject) -> Iterator[Trial]:
    """A run keeps no memory, a capture takes only the graph's, and a replay takes none."""
    _capturing(subject)
    for case in subject.made(subject.cases.simple()):
        subject.run(case.call, case.name)
        before = torch.cuda.memory_allocated(subject.device)
        subject.run(case.call, case.name)
        kept = torch.cuda.memory_allocated(subject.device) - before
        yield Trial(f"{case.name}: eager", f"a run keeps {kept} bytes of memory" if kept else None)
        yield _captured_alone(subject, case)


def synchronisations(subject: Subject) -> Iterator[Trial]:
    """Nothing in a run waits for the device: torch's sync debug mode raises where it does."""
    for case in subject.made(subject.cases.simple()):
        subject.run(case.call, case.name)  # what a first call loads may wait
        problem = None
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            subject.kernel.run(case.call)
        except RuntimeError as error:
            problem = raised(error)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        subject.wait()
        yield Trial(case.name, problem)


def late_compilations(subject: Subject) -> Iterator[Trial]:
    """Triton compiles nothing after warm_up: here, and in all checks that ran before."""
    if not compilations.watchable():
        raise NotRun("no Triton that tells what it compiles")
    names = []
    for plans in (subject.cases.numerics(), subject.cases.ranks()):
        for case in subject.made(plans):
            names.append(case.name)
            subject.run(case.call, case.name)
    if not (isinstance(subject.kernel, HasTriton) or subject.early or subject.late):
        raise NotRun("the kernel has no Triton function")
    for name in dict.fromkeys([*subject.late, *names]):
        late = subject.late.get(name)
        yield Trial(name, f"compiled after warm_up: {', '.join(late)}" if late else None)


def _capturing(subject: Subject) -> None:
    if not subject.kernel.captures:
        raise NotRun("the kernel says that it can't be captured")


def _recorded(subject: Subject, case: Case) -> Replay:
    subject.run(case.call, case.name)  # as vLLM does before it captures
    return subject.record(lambda: subject.kernel.run(case.call))


def _replayed(subject: Subject, case: Case, other: Case, replay: Replay) -> Trial:
    """Put another case's contents into the captured buffers, and replay."""
    given = buffers.inputs(other.call)
    for name, tensor in buffers.inputs(case.call).items():
        tensor.copy_(given[name])
    buffers.poison((buffers.outputs(case.call) | buffers.scratch(case.call)).values())
    subject.wait()
    replay()
    subject.wait()
    return subject.compared(Case(other.name, case.call, other.used, other.plan))


def _captured_alone(subject: Subject, case: Case) -> Trial:
    name = f"{case.name}: captured"
    graph = torch.cuda.CUDAGraph()
    before = _segments()
    with torch.cuda.graph(graph):
        subject.kernel.run(case.call)
    strange = [
        pool for at, pool in _segments().items() if at not in before and pool == DEFAULT_POOL
    ]
    if strange:
        return Trial(name, f"a capture took {len(strange)} segments outside the graph's pool")
    subject.wait()
    taken = _taken()
    graph.replay()
    subject.wait()
    more = _taken() - taken
    return Trial(name, f"a replay took memory {more} times" if more else None)


def _segments() -> dict[int, Any]:
    return {it["address"]: tuple(it["segment_pool_id"]) for it in torch.cuda.memory_snapshot()}


def _taken() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def _clobber(subject: Subject) -> None:
    """Overwrite memory that the allocator would hand out."""
    pieces = [
        torch.empty(size, dtype=torch.uint8, device=subject.device).fill_(0xFF)
        for size in (512, 4096, 1 << 16, 1 << 20, 1 << 24, CLOBBERED)
        for _ in range(4 if size < 1 << 24 else 1)
    ]
    del pieces
