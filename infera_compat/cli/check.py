"""`infera-compat matrix check`: a release held against its shim, from its wheel's source alone."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version
from rich.console import Console

from infera_compat import release
from infera_compat.cli import recorded
from infera_compat.cli.check_screen import show
from infera_compat.cli.fetch import Unpublished, fetch, unpack
from infera_compat.cli.finding import Change, Finding, Seam, Shift, as_dict, changes, public
from infera_compat.cli.recorded import Record
from infera_compat.contracts import Need, Verdict
from infera_compat.definitions import Source
from infera_compat.errors import CompatError
from infera_compat.install import OPS
from infera_compat.release import Release
from infera_compat.shims import pick

if TYPE_CHECKING:
    from infera_shims.shim import Shim

STOCK = "vllm"
WORKER = "worker"
DEVICES = ("cuda", "cpu")
NEAR = 2
"""How many published releases are told on either side of one that is not."""


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
    _one_of({"a release": asked, "--wheel": wheel, "--root": root})
    with tempfile.TemporaryDirectory(prefix="infera-check-") as folder:
        if wheel is not None:
            found = release.at(unpack(wheel, Path(folder)))
        elif root is not None:
            found = release.at(_package(root))
        else:
            found = fetched(STOCK, parse(str(asked)), progress)
        finding = find(found, began)
    if as_json:
        print(json.dumps(as_dict(finding), indent=1))
    else:
        show(finding, console)
    return finding.status


def _one_of(given: Mapping[str, str | Path | None]) -> None:
    """Raise CompatError unless one alone was given: none is left out in silence."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise CompatError(
            "it is not clear which release is meant",
            found=" and ".join(names) or "none of them",
            expected=f"one of {', '.join(given)}",
            do="Give one: infera-compat matrix check 0.33.0, say.",
        )


def find(found: Release, began: float | None = None) -> Finding:
    """Hold a release against the shim that fits it best."""
    began = time.monotonic() if began is None else began
    known = recorded.releases()
    source = Source(found.root)
    shim, verdict = pick(found, {})  # every definition is read, known files or not
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


def nearest(version: Version | None, known: Iterable[str]) -> str:
    """The newest of the `known` releases, oldest first, that is not newer; else the oldest."""
    names = list(known)
    if version is None:
        return names[-1]
    not_newer = [name for name in names if Version(name) <= public(str(version))]
    return (not_newer or names[:1])[-1]


def _by_distance(known: Mapping[str, Record], name: str) -> list[Record]:
    """The records, the nearest to one of them first."""
    names = list(known)
    own = names.index(name)
    return [known[each] for each in sorted(names, key=lambda each: abs(names.index(each) - own))]


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
