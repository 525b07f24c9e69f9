"""The kernel that is being checked, and what the checks need to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import torch

from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.attention import AttentionCases
from infera_compat.kernels.conformance.cases import Case, Cases, compare
from infera_compat.kernels.conformance.compilations import watched
from infera_compat.kernels.conformance.experts import ExpertsCases
from infera_compat.kernels.conformance.mla_decode import MlaDecodeCases
from infera_compat.kernels.conformance.outcome import Trial
from infera_compat.kernels.kernel import ATTENTION, EXPERTS, MLA_DECODE, Kernel
from infera_compat.kernels.store import Store

CASES: Mapping[str, type[Cases[Any]]] = {
    ATTENTION: AttentionCases,
    MLA_DECODE: MlaDecodeCases,
    EXPERTS: ExpertsCases,
}

Replay = Callable[[], None]
FAR = 2**31
"""Elements that an offset of 32 bits does not reach."""


def cuda_graph(run: Callable[[], None]) -> Replay:
    """Record what a function puts on the device; returns what runs it again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


@dataclass(frozen=True)
class Wanted:
    """The scratch that a kernel asks for. workspace: bytes. counters: how many."""

    workspace: int
    counters: int

    @classmethod
    def by(cls, kernel: Kernel[Any, Any, Any], spec: Any, sizes: Any) -> Wanted:
        """Ask a kernel; ValueError for an answer that is no number."""
        wanted = cls(kernel.workspace(spec, sizes), kernel.counters(spec, sizes))
        for name, count in vars(wanted).items():
            if not isinstance(count, int) or count < 0:
                what = "bytes" if name == "workspace" else "counters"
                raise ValueError(f"{name} asks for {count!r}, expected a number of {what}")
        return wanted


@dataclass
class Subject:
    """A kernel on a device.

    asked: the name by which another process loads the kernel. refused: by what a case needs, why
    the kernel does not take it: no case of it is made. late: Triton's functions that were compiled
    after warm_up, by case; early: those of warm_up. warm_ups: seconds of each. record: how a CUDA
    graph is recorded. far: how many elements into a tensor an offset must reach.
    """

    kernel: Kernel[Any, Any, Any]
    device: torch.device
    seed: int = 0
    asked: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    late: dict[str, list[str]] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    warm_ups: list[float] = field(default_factory=list)
    record: Callable[[Callable[[], None]], Replay] = cuda_graph
    far: int = FAR
    _wanted: dict[Any, Wanted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make cases for the kernel's op."""
        self.cases = self.cases_of(self.seed)

    def cases_of(self, seed: int) -> Cases[Any]:
        """The op's cases with other random numbers."""
        return CASES[self.kernel.op](self.kernel, self.device, seed)

    def takes(self, plan: Any) -> bool:
        """Whether the kernel takes a plan's calls; else why not is noted."""
        reason = self.kernel.supports(plan.spec)
        why = self.cases.refusal(plan) if reason is None else f"refused by supports: {reason}"
        if why is not None:
            self.refused[self.cases.name(plan)] = why
        return why is None

    def made(self, plans: Iterable[Any], cases: Cases[Any] | None = None) -> Iterator[Case]:
        """The cases of those plans that the kernel takes, each ready to run."""
        maker = self.cases if cases is None else cases
        for plan in plans:
            if self.takes(plan):
                case = maker.make(plan)
                yield replace(case, call=self.equipped(case.call))

    @property
    def store(self) -> Store:
        """One that keeps nothing: each run measures a first start."""
        return Store(None, self.kernel.name, "", self.device.type, {})

    def equipped(self, call: Any) -> Any:
        """The call with a workspace and counters of its own, after a warm-up for its spec."""
        wanted = self.prepared(call.spec)
        return replace(
            call,
            workspace=buffers.scratch_bytes(wanted.workspace, self.device)
            if wanted.workspace
            else None,
            counters=buffers.counters(wanted.counters, self.device) if wanted.counters else None,
        )

    def prepared(self, spec: Any) -> Wanted:
        """Warm the kernel up for a spec, once; returns the scratch that it asks for."""
        if spec not in self._wanted:
            wanted = Wanted.by(self.kernel, spec, self.cases.sizes)
            began = monotonic()
            with watched(self.early):
                self.kernel.warm_up(spec, self.cases.sizes, self.device, self.store)
                self.wait()
            self.warm_ups.append(monotonic() - began)
            self._wanted[spec] = wanted
        return self._wanted[spec]

    def run(self, call: Any, name: str = "a further call") -> None:
        """Run the kernel and wait for it; what Triton compiles meanwhile is `late`."""
        names: list[str] = []
        with watched(names):
            self.kernel.run(call)
            self.wait()
        if names:
            self.late.setdefault(name, []).extend(names)

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def tried(self, case: Case) -> Trial:
        """Run a case and compare with the expectation."""
        self.serve(case)
        return self.compared(case)

    def serve(self, case: Case) -> None:
        """Run a case, its outputs and scratch poisoned before."""
        written = buffers.outputs(case.call) | buffers.scratch(case.call)
        buffers.poison(written.values())
        self.run(case.call, case.name)

    def compared(self, case: Case) -> Trial:
        """Whether a case that was run wrote what it should, and left its counters zero."""
        counters = case.call.counters
        if counters is not None and bool(counters.any()):
            left = int(counters.count_nonzero())
            counters.zero_()  # the next case is judged by itself
            return Trial(case.name, f"{left} of {counters.numel()} counters are not zero after it")
        want = self.cases.expected(case.call)
        got = buffers.outputs(case.call)
        return compare(case.name, got, want, case.used, case.call.spec.dtype)
