"""What a kernel is: a name, an op, and four methods that vLLM's adapters call.

The types of an op (its Spec, Sizes and Call) stand in `kernels/<op>/contract.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    import torch

    from infera_compat.kernels.store import Store

CONTRACT = 1
"""The version of the contract that this infera-compat speaks; a kernel says which one it knows."""

ATTENTION, MLA_DECODE, EXPERTS = "attention", "mla_decode", "experts"
OPS: Mapping[str, str] = {ATTENTION: "attention", MLA_DECODE: "attention", EXPERTS: "moe"}
"""By a kernel's op: the op as INFERA_ATTENTION and INFERA_MOE name it."""

SpecT = TypeVar("SpecT")
SizesT = TypeVar("SizesT")
CallT = TypeVar("CallT")


@dataclass(frozen=True)
class Reason:
    """Why a kernel does not take a layer: what it found, and what it expects there."""

    found: str
    expected: str

    def __str__(self) -> str:
        """In one line, for a report."""
        return f"found {self.found}, expected {self.expected}"


class Kernel(ABC, Generic[SpecT, SizesT, CallT]):
    """A kernel for one op. One object serves all layers of a process, from several threads.

    name: what INFERA_ATTENTION or INFERA_MOE asks for; the same as its entry point's.
    op: one of OPS. contract: the version of the contract that it was written against.
    captures: whether `run` may be recorded into a CUDA graph.
    """

    name: ClassVar[str]
    op: ClassVar[str]
    contract: ClassVar[int] = CONTRACT
    captures: ClassVar[bool] = True

    @abstractmethod
    def supports(self, spec: SpecT) -> Reason | None:
        """Why this kernel does not take a layer, or None where it takes it.

        Asked once a layer, before anything is compiled. Shapes, types and flags only: a spec has
        no tensor in it.
        """

    def workspace(self, spec: SpecT, sizes: SizesT) -> int:
        """Bytes of scratch that `run` wants for a layer, at most, within `sizes`.

        Reserved once for all layers of an op (the largest asked for), on the layer's device, before
        vLLM profiles its memory; `run` gets it as `call.workspace`. No layer's contents outlive its
        call. Tensors that `run` allocates by itself come from the pool of the graph being captured.
        """
        return 0

    def counters(self, spec: SpecT, sizes: SizesT) -> int:
        """How many counters `run` wants for a layer, at most, within `sizes`.

        int32, as `call.counters`: tickets by which programs of one launch find out which of them
        is the last. They are zero when `run` is called and zero again after what it has launched,
        so that nothing has to clear them in between. Reserved once for all layers of an op, like
        the workspace; calls of an op run one after the other.
        """
        return 0

    def warm_up(self, spec: SpecT, sizes: SizesT, device: torch.device, store: Store) -> None:
        """Compile, and load tuned settings, for all that `run` may meet within `sizes`.

        store: what this kernel put aside in an earlier start, on this GPU and with these versions;
        what Triton compiles it keeps by itself. Called once for each distinct spec, before graphs
        are captured and under enforce_eager too. After it nothing is compiled any more.
        """
        return  # a kernel that compiles nothing has nothing to do

    @abstractmethod
    def run(self, call: CallT) -> None:
        """Write `call.out`.

        Never reads a tensor's values on the host, never waits for the device, and never decides on
        lengths that a CUDA graph may change between replays. What lies beyond `out`, and the slots
        of caches, are left alone.
        """
