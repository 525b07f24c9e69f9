"""Which kernels are installed, by the entry-point group `infera_compat.kernels`, ours and others'.

Finding them reads metadata alone; a kernel's module, and with it torch, is imported by `load`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

from infera_compat.errors import CompatError, words_of
from infera_compat.kernels.kernel import ATTENTION, CONTRACT, EXPERTS, MLA_DECODE, OPS, Kernel
from infera_compat.settings import MODES

GROUP = "infera_compat.kernels"
OURS = "infera-compat"
NOT_HERE = ("torch", "triton")
"""Modules without which no kernel can be loaded, and none is broken for that."""

BASES: Mapping[str, tuple[str, str]] = {
    ATTENTION: ("infera_compat.kernels.attention.contract", "AttentionKernel"),
    MLA_DECODE: ("infera_compat.kernels.mla_decode.contract", "MlaDecodeKernel"),
    EXPERTS: ("infera_compat.kernels.experts.contract", "ExpertsKernel"),
}
"""By a kernel's op: the class to derive from. By name, since most processes load no kernel."""

AnyKernel = Kernel[Any, Any, Any]


@dataclass(frozen=True, order=True)
class Entry:
    """A kernel as a distribution announces it.

    name: what INFERA_ATTENTION or INFERA_MOE asks for. value: "module:attribute".
    distribution, version: of the distribution whose metadata has it.
    """

    name: str
    value: str
    distribution: str
    version: str

    def __str__(self) -> str:
        """For a message: the kernel and where it is from."""
        return f"{self.name} of {self.source}"

    @property
    def source(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def module(self) -> str:
        """The module that is imported for it."""
        return _reference(self)[0]

    @property
    def is_ours(self) -> bool:
        """Whether it is of infera-compat itself."""
        return self.distribution.replace("_", "-").lower() == OURS


@dataclass(frozen=True)
class Broken:
    """A kernel that can't be had: what was found, and what was expected there.

    missing: the module of NOT_HERE that this Python lacks; then the kernel itself may be right.
    """

    entry: Entry
    found: str
    expected: str
    missing: str | None = None

    def __str__(self) -> str:
        """In one line, for a report."""
        if self.missing:
            return f"not loaded: {self.found}"
        return f"broken: found {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class Registry:
    """The kernels that are installed.

    entries: by name, those that may be loaded. broken: those whose name is not theirs alone.
    """

    entries: Mapping[str, Entry]
    broken: tuple[Broken, ...] = ()

    def names(self) -> tuple[str, ...]:
        """All names in order; a broken kernel's too, so that who asks for it hears why."""
        return tuple(sorted({*self.entries, *(broken.entry.name for broken in self.broken)}))

    def load(self, name: str) -> AnyKernel:
        """Import the kernel of this name.

        Raises CompatError, with its distribution, where there is none or it is broken.
        """
        if name in self.entries:
            return _load(self.entries[name])
        broken = [broken for broken in self.broken if broken.entry.name == name]
        if broken:
            raise CompatError(
                f"kernel {name} can't be had",
                found="; ".join(f"{one.entry.source}: {one.found}" for one in broken),
                expected=broken[0].expected,
                do="Uninstall what is not wanted of these.",
            )
        raise CompatError(
            f"there is no kernel {name}",
            found=f"kernels {', '.join(self.names()) or '(none)'}",
            expected=f"an installed distribution with an entry point {name} in {GROUP}",
            do="Install it into vLLM's own environment.",
        )

    def load_all(self) -> tuple[dict[str, AnyKernel], list[Broken]]:
        """Import all of them: the kernels by name, and what is broken, with the reason."""
        kernels: dict[str, AnyKernel] = {}
        broken = list(self.broken)
        for name, entry in sorted(self.entries.items()):
            try:
                kernels[name] = _load(entry)
            except CompatError as error:
                broken.append(Broken(entry, error.found, error.expected, _missing(error)))
        return kernels, sorted(broken, key=lambda one: one.entry)


def find() -> Registry:
    """The kernels that installed distributions announce; imports none of them."""
    by_name: dict[str, set[Entry]] = {}
    for point in metadata.entry_points(group=GROUP):
        by_name.setdefault(point.name, set()).add(_entry(point))
    entries: dict[str, Entry] = {}
    broken: list[Broken] = []
    for name, claims in by_name.items():
        owner, refused = _owner(name, claims)
        if owner is not None:
            entries[name] = owner
        broken += refused
    return Registry(entries, tuple(sorted(broken, key=lambda one: one.entry)))


def _entry(point: metadata.EntryPoint) -> Entry:
    if point.dist is None:
        raise AssertionError("metadata.entry_points names each one's distribution")
    # The rest of a distribution that was removed by halves has neither name nor version.
    about = point.dist.metadata
    name, version = (
        about[field] if field in about else "(unknown)"  # noqa: SIM401 (not a Mapping)
        for field in ("Name", "Version")
    )
    return Entry(point.name, point.value, name, version)


def _owner(name: str, claims: Iterable[Entry]) -> tuple[Entry | None, list[Broken]]:
    """Who has a name that these announce: ours before others; of two others, neither."""
    every = sorted(claims)
    if name in MODES:
        found = f"the name {name}, which is a mode"
        return None, [Broken(one, found, f"a name beside {', '.join(MODES)}") for one in every]
    ours = [one for one in every if one.is_ours]
    first = ours or every
    owner = first[0] if len(first) == 1 else None
    return owner, [
        Broken(one, f"name taken by {_others(one, every)}", "a name of its own")
        for one in every
        if one != owner
    ]


def _others(one: Entry, every: Iterable[Entry]) -> str:
    return " and ".join(f"{other.source} ({other.value})" for other in every if other != one)


def _load(entry: Entry) -> AnyKernel:
    found = _attribute(_module(entry), entry)
    if not isinstance(found, Kernel):
        raise _wrong(entry, _kind(found), f"a Kernel's instance in {entry.value}")
    checked(entry, found)
    return found


def checked(entry: Entry, kernel: AnyKernel) -> None:
    """Raise CompatError for a kernel that is not what its entry, or this infera-compat, wants."""
    try:
        name, op, contract = kernel.name, kernel.op, kernel.contract
    except Exception as error:  # a property may raise anything
        raise _wrong(entry, words_of(error), "a kernel with name, op and contract") from error
    if contract != CONTRACT:
        raise _wrong(
            entry,
            f"one for contract {contract!r}",
            f"contract {CONTRACT}, which this infera-compat speaks",
        )
    if name != entry.name:
        raise _wrong(entry, f"a kernel with the name {name!r}", f"its entry point's, {entry.name}")
    if op not in tuple(OPS):  # an op may be of any type here, one without a hash too
        raise _wrong(entry, f"op {op!r}", f"one of {', '.join(OPS)}")
    module, base = BASES[op]
    if not isinstance(kernel, vars(importlib.import_module(module))[base]):
        raise _wrong(
            entry, f"{type(kernel).__name__} of op {op}", f"one derived from {module}.{base}"
        )
    if not name.isidentifier():
        raise _wrong(entry, f"the name {name!r}", "a Python identifier: it names a torch op too")


def _module(entry: Entry) -> ModuleType:
    name = entry.module
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module that ends the process at its import, too
        if isinstance(error, ModuleNotFoundError) and error.name in NOT_HERE:
            raise _wrong(entry, str(error), f"{error.name} to be installed") from error
        raise _wrong(entry, words_of(error), f"a module {name!r} that can be imported") from error


def _attribute(module: ModuleType, entry: Entry) -> object:
    value: object = module
    for part in filter(None, _reference(entry)[1].split(".")):
        try:
            value = getattr(value, part)
        except Exception as error:  # a module's __getattr__ may raise anything
            raise _wrong(entry, words_of(error), f"{entry.value} to be there") from error
    return value


def _reference(entry: Entry) -> tuple[str, str]:
    """Module and attribute of a value; extras in brackets, which mean nothing here, left out."""
    module, _, attribute = entry.value.partition("[")[0].partition(":")
    return module.strip(), attribute.strip()


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return f"an object of the type {type(value).__name__}"


def _wrong(entry: Entry, found: str, expected: str) -> CompatError:
    return CompatError(
        f"kernel {entry} can't be loaded",
        found=found,
        expected=expected,
        do=f"Mend or uninstall {entry.distribution}, or ask for another kernel.",
    )


def _missing(error: CompatError) -> str | None:
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and cause.name in NOT_HERE:
        return cause.name
    return None
