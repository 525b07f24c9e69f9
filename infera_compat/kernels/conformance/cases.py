"""A case: a call with fresh random inputs, and what must come of it. What each op has to offer."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch

from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.outcome import NotRun, Trial

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
    torch.float32: 1e-3,  # a GPU may multiply in TF32
}
"""Relative and absolute, both, by the element type of `out`."""
DTYPES = tuple(TOLERANCES)

TP = (1, 2, 4, 8)


@dataclass(frozen=True)
class Case:
    """One call.

    used: [rows of out], bool: the rows that must be written. plan: what it was made from.
    """

    name: str
    call: Any
    used: torch.Tensor
    plan: Any


PlanT = TypeVar("PlanT")
Part = tuple[Any, slice]
"""A call that holds some of another call's rows of out, and which ones."""


class Cases(ABC, Generic[PlanT]):
    """Makes the cases of an op.

    A plan is a frozen dataclass with the field `spec`: all that a case is made from, besides the
    seed. The same plan and seed make the same case.
    """

    op: ClassVar[str]

    def __init__(self, kernel: Any, device: torch.device, seed: int):
        """Make cases for a kernel, on a device."""
        self.kernel, self.device, self.seed = kernel, device, seed
        self.large = device.type != "cpu"

    @property
    @abstractmethod
    def sizes(self) -> Any:
        """The most that any case holds: what `workspace` and `warm_up` are asked with."""

    @abstractmethod
    def numerics(self) -> Iterator[PlanT]:
        """Every element type, kind of batch and feature."""

    @abstractmethod
    def ranks(self) -> Iterator[PlanT]:
        """The shapes that a rank sees under tensor parallelism."""

    @abstractmethod
    def simple(self) -> Iterator[PlanT]:
        """A few cases, each of another kind, for checks of behaviour."""

    @abstractmethod
    def padded(self) -> Iterator[PlanT]:
        """Cases with rows of padding, whose inputs are NaN."""

    @abstractmethod
    def captured(self) -> Iterator[tuple[PlanT, tuple[PlanT, ...]]]:
        """What a graph is captured with, and plans of the same shapes that it is replayed on."""

    def paged(self) -> Iterator[PlanT]:
        """Every block size and layout of a cache."""
        raise NotRun(f"{self.op}: the op has no cache")

    def strided(self) -> Iterator[PlanT]:
        """Cases whose tensors have gaps between their rows, where the contract says "by stride"."""
        raise NotRun(f"{self.op}: the contract has no tensor by stride")

    def mixed(self) -> Iterator[PlanT]:
        """Cases that can be cut: see `parts`."""
        yield from self.simple()

    @abstractmethod
    def canaries(self) -> Iterator[PlanT]:
        """Cases where all that must not be read is marked."""

    @abstractmethod
    def refusal(self, plan: PlanT) -> str | None:
        """Why the kernel takes no such call although it supports the spec; None: it does."""

    @abstractmethod
    def name(self, plan: PlanT) -> str:
        """A plan in a few words."""

    @abstractmethod
    def make(self, plan: PlanT) -> Case:
        """The case of a plan, without a workspace."""

    @abstractmethod
    def expected(self, call: Any) -> dict[str, torch.Tensor]:
        """What each output should be, in float64."""

    @abstractmethod
    def parts(self, case: Case) -> Iterator[tuple[str, list[Part]]]:
        """Ways to cut a case into calls that together must write the same."""

    @abstractmethod
    def isolated(self, case: Case) -> Iterator[tuple[str, Any, torch.Tensor]]:
        """Calls where all that some rows must not read is marked, and those rows: [T], bool."""

    def reaching(self) -> Iterator[PlanT]:
        """Cases whose calls `far` can move."""
        yield from self.simple()

    @abstractmethod
    def far(self, case: Case, elements: int) -> Any | None:
        """The call, with what it reads more than `elements` elements into a tensor.

        None where the op has no tensor that grows so large.
        """

    def far_bytes(self, case: Case, elements: int) -> int:
        """About how much memory `far` takes."""
        return 6 * elements

    def generator(self, plan: PlanT) -> torch.Generator:
        """Random numbers that depend on the plan and the seed alone."""
        number = zlib.crc32(f"{self.seed} {plan!r}".encode())
        return torch.Generator(self.device).manual_seed(number)

    def random(
        self, generator: torch.Generator, *shape: int, dtype: torch.dtype, scale: float = 1.0
    ) -> torch.Tensor:
        """Normally distributed numbers."""
        values = torch.randn(shape, generator=generator, device=self.device)
        return (values * scale).to(dtype)

    def integers(self, values: Iterable[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """A tensor of numbers."""
        return torch.tensor(list(values), dtype=dtype, device=self.device)


def compare(
    case: str,
    got: Mapping[str, torch.Tensor],
    want: Mapping[str, torch.Tensor],
    used: torch.Tensor,
    dtype: torch.dtype,
) -> Trial:
    """Whether each output is what it should be, in the rows that are used."""
    tolerance = TOLERANCES[dtype]
    worst = 0.0
    for name, values in got.items():
        mine, right = values[used].double(), want[name][used].double()
        lost = int((mine.isnan() & ~right.isnan()).sum())
        if lost:
            return Trial(case, f"{name} has {lost} NaN among {mine.numel()} values")
        difference = (mine - right).abs()
        difference[mine == right] = 0.0  # infinities too
        error = float(difference.max()) if difference.numel() else 0.0
        worst = max(worst, error)
        outside = int((difference > tolerance + tolerance * right.abs()).sum())
        if outside:
            text = (
                f"{name} differs in {outside} of {mine.numel()} values, by {error:.3g} at most; "
                f"the tolerance is {tolerance} ({str(dtype).removeprefix('torch.')})"
            )
            return Trial(case, text, error)
    return Trial(case, error=worst)


def results(case: Case) -> dict[str, torch.Tensor]:
    """A copy of what the outputs hold in the rows that are used."""
    return {name: it[case.used].clone() for name, it in buffers.outputs(case.call).items()}
