"""`infera-compat matrix check`: a release held against its shim, from its wheel's source alone."""

from __future__ import annotations

import importlib
import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version
from rich.console import Console

from infera_compat import release
from infera_compat.cli import recorded
from infera_compat.cli.fetch import Unpublished, fetch, unpack
from infera_compat.cli.recorded import SHIMS, Record
from infera_compat.contracts import Moved, Need, Verdict, judge
from infera_compat.definitions import Definition, Source
from infera_compat.errors import CompatError
from infera_compat.install import OPS
from infera_compat.release import Release

if TYPE_CHECKING:
    from infera_shims.shim import Shim

STOCK = "vllm"
WORKER = "worker"
DEVICES = ("cuda", "cpu")
NEAR = 2
"""How many published releases are told on either side of one that is not."""


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
        return first <= _public(self.release) <= last

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


def check(
    asked: str | None, wheel: Path | None, root: Path | None, as_json: bool, console: Console
) -> int:
    """Judge a release, print what was found, and return the exit status.

    Args:
        asked: the release to fetch; not needed with one of the next two.
        wheel: a wheel to judge instead.
        root: an unpacked package's folder to judge instead.
        as_json: print JSON.
        console: where a person reads.
    """
    began = time.monotonic()
    progress = Console(stderr=True) if as_json else console
    with tempfile.TemporaryDirectory(prefix="infera-check-") as folder:
        if wheel is not None:
            found = release.at(unpack(wheel, Path(folder)))
        elif root is not None:
            found = release.at(_package(root))
        elif asked is not None:
            found = fetched(STOCK, parse(asked), progress)
        else:
            raise CompatError(
                "no release was given",
                found="neither a release nor --wheel nor --root",
                expected="one of them",
                do="Give a release: infera-compat matrix check 0.33.0.",
            )
        finding = find(found, began)
    if as_json:
        print(json.dumps(as_dict(finding), indent=1))
    else:
        importlib.import_module("infera_compat.cli.check_screen").show(finding, console)
    return finding.status


def find(found: Release, began: float | None = None) -> Finding:
    """Hold a release against the shim that fits it best."""
    began = time.monotonic() if began is None else began
    known = recorded.releases()
    source = Source(found.root)
    shim, verdict = pick(found, source)
    name = found.text.partition("+")[0]
    against = nearest(found.version, known)
    return Finding(
        release=name,
        shim=shim.name,
        verdict=verdict,
        supported=tuple(known),
        against=against,
        seams=tuple(_seams(shim, verdict)),
        shifts=tuple(_shifts(shim, verdict, found, _by_distance(known, against))),
        harmless=tuple(_harmless(shim, verdict, source, known[against])),
        seconds=round(time.monotonic() - began, 1),
    )


def pick(found: Release, source: Source) -> tuple[Shim, Verdict]:
    """What the plugin would pick, but every definition is read, known files or not."""
    shims = importlib.import_module(SHIMS).order(found.version)
    tried = [(shim, judge(source, shim.needs, {})) for shim in shims]
    whole = [pair for pair in tried if not pair[1].moved]
    if whole:
        return max(whole, key=lambda pair: pair[1].of)
    return min(tried, key=lambda pair: len(pair[1].moved))


def nearest(version: Version | None, known: Iterable[str]) -> str:
    """The newest of the `known` releases, oldest first, that is not newer; else the oldest."""
    names = list(known)
    if version is None:
        return names[-1]
    not_newer = [name for name in names if Version(name) <= _public(str(version))]
    return (not_newer or names[:1])[-1]


def _by_distance(known: Mapping[str, Record], name: str) -> list[Record]:
    """The records, the nearest to one of them first."""
    names = list(known)
    own = names.index(name)
    return [known[each] for each in sorted(names, key=lambda each: abs(names.index(each) - own))]


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


def parse(asked: str) -> Version:
    """The version that was typed."""
    try:
        return Version(asked)
    except InvalidVersion as error:
        raise CompatError(
            "that is no version", found=repr(asked), expected="0.33.0, say", do="Mend it."
        ) from error


def _package(root: Path) -> Path:
    """The package's folder, where its parent is given too."""
    folder = next((each for each in (root, root / STOCK) if (each / "__init__.py").is_file()), None)
    if folder is None:
        raise CompatError(
            f"{root} is no package",
            found="no __init__.py in it",
            expected="an unpacked wheel's vllm folder",
            do="Mend --root.",
        )
    return folder.absolute()


def fetched(distribution: str, version: Version, console: Console) -> Release:
    """The release, from the cache or the index."""
    try:
        return release.at(fetch(distribution, version, console))
    except Unpublished as error:
        older = [str(each) for each in error.published if each < version][-NEAR:]
        newer = [str(each) for each in error.published if each > version][:NEAR]
        raise CompatError(
            f"{distribution} {version} is not published",
            found=f"{', '.join([*older, *newer])} are the nearest",
            expected="a published release",
            do="Give another one, or --wheel or --root for one that is not there yet.",
        ) from error


def _public(text: str) -> Version:
    return Version(Version(text).public) if _is_version(text) else Version("0")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _seams(shim: Shim, verdict: Verdict) -> Iterator[Seam]:
    for group, needs in shim.groups.items():
        op, _, name = group.rpartition(".")
        taken = tuple(device for device in DEVICES if name in shim.automatic(op, device))
        if needs:
            moved = verdict.among(needs)
            yield Seam(op or " and ".join(OPS), name, taken if op in OPS else (), len(needs), moved)


def _shifts(
    shim: Shim, verdict: Verdict, found: Release, records: Sequence[Record]
) -> Iterator[Shift]:
    missing = [moved.need for moved in verdict.moved if moved.found is None]
    places = _elsewhere(found.root, missing)
    for moved in verdict.moved:
        need = moved.need
        old = next((r for r in records if need.met_by(r.symbols.get(need.symbol))), None)
        yield Shift(
            moved,
            old.symbols[need.symbol] if old else None,
            old.release if old else None,
            places.get(need, ()),
            tuple(group for group, needs in shim.groups.items() if need in needs),
        )


def _elsewhere(root: Path, needs: Iterable[Need]) -> dict[Need, tuple[str, ...]]:
    """Where a file defines the class, function or variable that each need's symbol begins with."""
    names = {need: need.symbol.partition(":")[2].partition(".")[0] for need in needs}
    if not names:
        return {}
    wanted = "|".join(sorted(set(names.values())))
    head = re.compile(rf"^(?:(?:class|def|async def) )?({wanted})\b(?=[(:]| *[:=])", re.MULTILINE)
    places: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*.py")):
        text = file.read_text("utf-8", errors="replace")
        for match in head.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            places.setdefault(match[1], []).append(f"{file.relative_to(root)}:{line}")
    return {need: tuple(places.get(name, ())) for need, name in names.items()}


def _harmless(shim: Shim, verdict: Verdict, source: Source, known: Record) -> Iterator[Change]:
    moved = {each.need for each in verdict.moved}
    for symbol in sorted({need.symbol for need in shim.needs if need not in moved}):
        old, new = known.symbols.get(symbol), source.find(symbol)
        if old is None or new is None:
            continue
        differ = changes(old, new)
        if differ:
            yield Change(symbol, differ, new.place, old.place)


def _added_and_gone(what: str, old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    if tuple(old) == tuple(new):
        return
    told = [f"+ {each}" for each in new if each not in old]
    told += [f"− {each}" for each in old if each not in new]
    yield f"{what}: {', '.join(told)}" if told else f"{what}: in another order"
