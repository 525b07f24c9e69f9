"""What a shim says of a line of releases: data, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Generic, TypeVar

from infera_compat.contracts import Need

CPU = "cpu"
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something that changed between two releases, as one side of the change has it.

    value: what it is there. symbol: the upstream symbol that shows it. needs: the contract that
    tells this side from the other. first, last: the releases it holds for; last is None on the side
    of the newest. test: where it is held against the recorded releases. goes: when it can go.
    """

    value: T
    symbol: str
    needs: tuple[Need, ...]
    first: str
    last: str | None
    goes: str
    test: str = "tests/contracts/test_entries.py"


@dataclass(frozen=True)
class MoeLayer:
    """A MoE layer of the model.

    held_by: the class that stands for it in `static_forward_context`. method: the path of
    attributes from there to its quantisation method.
    """

    held_by: str
    method: str


@dataclass(frozen=True)
class Replaced:
    """A class that vLLM lets be replaced by name, by a subclass that overrides `methods`.

    symbol: the class. registered: the name it has in vLLM's registry of layers and ops. given: the
    parameter of those methods that is the hidden states, and its place after self. layer_name: the
    path of attributes from an instance to the name of its layer in the model.
    """

    symbol: str
    registered: str
    methods: tuple[str, ...]
    given: tuple[str, int]
    layer_name: str


@dataclass(frozen=True)
class Shim:
    """One line of releases.

    name: the module's. first: the first minor it was written for, as (major, minor).
    common: what every release has, by op and seam ("worker", and "attention.layer", …), best seam
        first within an op.
    kernel_init: the modular kernel's constructor. moe_layer: where MoE layers are. moe_replaced:
        the MoE layer class that is replaced by name. moe_on_cpu: the MoE seam of a CPU.
    """

    name: str
    first: tuple[int, int]
    common: Mapping[str, tuple[Need, ...]]
    kernel_init: Entry[str]
    moe_layer: Entry[MoeLayer]
    moe_replaced: Entry[Replaced]
    moe_on_cpu: Entry[str]

    @cached_property
    def groups(self) -> dict[str, tuple[Need, ...]]:
        """Every symbol that binding touches here, by "worker" or op and seam."""
        entries: dict[str, tuple[Entry[Any], ...]] = {
            "moe.modular_kernel": (self.kernel_init, self.moe_layer),
            "moe.register_oot": (self.moe_layer,),
            "moe.pluggable_layer": (self.moe_layer, self.moe_replaced),
            "moe.model": (self.moe_layer,),
            ON_CPU: (self.moe_on_cpu,),
        }
        groups = {**self.common, ON_CPU: ()}
        return {
            group: tuple(dict.fromkeys(chain(needs, *(x.needs for x in entries.get(group, ())))))
            for group, needs in groups.items()
        }

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(need for needs in self.groups.values() for need in needs))

    def seams(self, op: str) -> tuple[str, ...]:
        """The names of an op's seams, best first."""
        named = (group.partition(".") for group in self.common)
        return tuple(seam for of, _, seam in named if of == op)

    def automatic(self, op: str, device_type: str) -> tuple[str, ...]:
        """The seams that are taken on a platform of this type where none is forced.

        The layer seam takes the attention layers that never ask for a backend, and MLA's.
        """
        if op == "attention":
            return ("get_attn_backend_cls", "layer")
        return (self.moe_on_cpu.value if device_type == CPU else "modular_kernel",)

    def group(self, op: str, seam: str, device_type: str | None = None) -> tuple[Need, ...]:
        """What binding `op` by `seam` stands on, the worker's symbols included."""
        on_cpu = self.groups[ON_CPU] if op == "moe" and device_type == CPU else ()
        return (*self.groups["worker"], *self.groups[f"{op}.{seam}"], *on_cpu)


ON_CPU = "moe.on_cpu"
"""The group of needs that tells which MoE seam a CPU has."""
