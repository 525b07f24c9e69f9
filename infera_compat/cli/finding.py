"""What `matrix check` found of a release: how each seam stands, what moved, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from packaging.version import InvalidVersion, Version

from infera_compat.contracts import Moved, Verdict
from infera_compat.definitions import Definition


class Judgement(Enum):
    """How a release stands, and what the command says of it."""

    SUPPORTED = "supported"
    HARMLESS = "supported, these moved harmlessly"
    REFUSED = "refused, this moved"
    OUTSIDE = "every contract holds, but it is outside the supported range"


@dataclass(frozen=True)
class Seam:
    """One seam's own needs, or what all seams of `op` share.

    taken_on: the kinds of device where it is taken unless another is asked for.
    """

    op: str
    name: str
    taken_on: tuple[str, ...]
    of: int
    moved: tuple[Moved, ...]

    @property
    def held(self) -> int:
        """How many of its needs are met."""
        return self.of - len(self.moved)


@dataclass(frozen=True)
class Shift:
    """A need that is not met.

    old: what it was in the nearest recorded release that meets it, `old_release`. elsewhere: where
    a class or function of that name is now defined, if the file that is looked in has none.
    """

    moved: Moved
    old: Definition | None
    old_release: str | None
    elsewhere: tuple[str, ...]
    seams: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A definition that meets its need and still differs from the nearest recorded release's."""

    symbol: str
    changes: tuple[str, ...]
    place: str
    old_place: str


@dataclass(frozen=True)
class Finding:
    """A release, judged.

    supported: the releases that are. against: the one of them that `harmless` is told against.
    """

    release: str
    shim: str
    verdict: Verdict
    supported: tuple[str, ...]
    against: str
    seams: tuple[Seam, ...]
    shifts: tuple[Shift, ...]
    harmless: tuple[Change, ...]
    seconds: float = field(compare=False, default=0.0)

    @property
    def inside(self) -> bool:
        """Whether the release lies in the supported range."""
        first, last = Version(self.supported[0]), Version(self.supported[-1])
        return first <= public(self.release) <= last

    @property
    def judgement(self) -> Judgement:
        """Refused where anything moved, and outside before anything is called supported."""
        if self.shifts:
            return Judgement.REFUSED
        if not self.inside:
            return Judgement.OUTSIDE
        return Judgement.HARMLESS if self.harmless else Judgement.SUPPORTED

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.judgement in (Judgement.SUPPORTED, Judgement.HARMLESS) else 1


def as_dict(finding: Finding) -> dict[str, Any]:
    """The finding for a program to read."""
    return {
        "release": finding.release,
        "verdict": finding.judgement.name.lower(),
        "status": finding.status,
        "supported": list(finding.supported),
        "in_supported_range": finding.inside,
        "shim": finding.shim,
        "held": finding.verdict.held,
        "of": finding.verdict.of,
        "seams": [
            {
                "op": seam.op,
                "seam": seam.name,
                "taken_on": list(seam.taken_on),
                "held": seam.held,
                "of": seam.of,
                "moved": [moved.need.symbol for moved in seam.moved],
            }
            for seam in finding.seams
        ],
        "moved": [
            {
                "symbol": shift.moved.need.symbol,
                "why": shift.moved.need.why,
                "seams": list(shift.seams),
                "expected": shift.moved.need.describe(),
                "old": shift.old and shift.old.describe(),
                "old_release": shift.old_release,
                "found": shift.moved.found and shift.moved.found.describe(),
                "elsewhere": list(shift.elsewhere),
            }
            for shift in finding.shifts
        ],
        "against": finding.against,
        "moved_harmlessly": [
            {"symbol": change.symbol, "place": change.place, "changes": list(change.changes)}
            for change in finding.harmless
        ],
        "seconds": finding.seconds,
    }


def changes(old: Definition, new: Definition) -> tuple[str, ...]:
    """In what two definitions of a symbol differ; where it stands does not count."""
    given_old, given_new = dict(old.defaults), dict(new.defaults)
    told = [*_added_and_gone("parameters", old.parameters or (), new.parameters or ())]
    told += [
        f"default of {name}: {given_old.get(name, 'none')} → {given_new.get(name, 'none')}"
        for name in new.parameters or ()
        if name in (old.parameters or ()) and given_old.get(name) != given_new.get(name)
    ]
    for what in ("bases", "members"):
        told += _added_and_gone(what, getattr(old, what), getattr(new, what))
    told += _added_and_gone("decorators", old.marks, new.marks)
    told += [
        f"{what}: {getattr(old, what)} → {getattr(new, what)}"
        for what in ("kind", "type")
        if getattr(old, what) != getattr(new, what)
    ]
    return tuple(told)


def public(text: str) -> Version:
    """A version without its local part; 0 where it is none."""
    return Version(Version(text).public) if _is_version(text) else Version("0")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _added_and_gone(what: str, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    if tuple(old) == tuple(new):
        return
    told = [f"+ {each}" for each in new if each not in old]
    told += [f"− {each}" for each in old if each not in new]
    yield f"{what}: {', '.join(told)}" if told else f"{what}: in another order"
