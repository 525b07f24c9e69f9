"""What changed between two lines of releases: each entry holds where it says, and is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import infera_shims
from infera_compat.cli import recorded
from infera_compat.cli.recorded import Record
from infera_shims.shim import Entry, Shim

ROOT = Path(__file__).parents[2]
RECORDED = recorded.releases()
OLDEST = next(iter(RECORDED))
SHIMS = {shim.name: shim for shim in infera_shims.order(None)}
LINES = [SHIMS[name] for name in infera_shims.LINES]
NAMES = [each.name for each in fields(Shim) if str(each.type).startswith("Entry")]


def entries() -> Iterator[tuple[str, str, Entry[Any]]]:
    """Each entry once: the newest line that has it, the field it stands in, and itself."""
    for name in NAMES:
        before = None
        for shim in reversed(LINES):
            entry: Entry[Any] = getattr(shim, name)
            if entry is not before:
                yield shim.name, name, entry
            before = entry


ENTRIES = {f"{line}.{name}": entry for line, name, entry in entries()}


def holds(entry: Entry[Any], release: Record) -> bool:
    return all(need.met_by(release.symbols.get(need.symbol)) for need in entry.needs)


def among(entry: Entry[Any], releases: Iterable[Record]) -> list[Record]:
    """The releases of an entry's range."""
    first, last = Version(entry.first), Version(entry.last or "999")
    return [known for known in releases if first <= Version(known.release) <= last]


def idle(releases: Iterable[Record]) -> list[str]:
    """The entries that none of these releases needs: each gets on with what its neighbour has.

    An entry of the newest line is what there is; an older one is needed by a release that is bound
    by it, and on which the next newer entry of its field does not hold.
    """
    known = list(releases)
    gone = []
    for line, name, entry in entries():
        newer = [getattr(shim, name) for shim in LINES if shim.first > SHIMS[line].first]
        users = [each for each in known if getattr(SHIMS[each.shim], name) is entry]
        if newer and not any(not holds(newer[0], each) for each in among(entry, users)):
            gone.append(f"{line}.{name}")
    return gone


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_it_is_for_how_long_and_when_it_goes(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.value
    assert re.fullmatch(r"vllm(/\w+)+\.py \w+(\.\w+)?", entry.symbol)
    assert Version(entry.first) <= Version(entry.last or "999")
    assert entry.last is None or entry.last in RECORDED
    assert entry.first in RECORDED or Version(entry.first) < Version(OLDEST)
    assert entry.goes
    assert (ROOT / entry.test).is_file()
    if entry.last:
        minor = ".".join(entry.last.split(".")[:2])
        assert entry.goes == f"when {minor} is no longer supported"


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_holds_in_its_range_and_nowhere_else(name: str) -> None:
    entry = ENTRIES[name]
    inside = among(entry, RECORDED.values())
    assert inside
    assert all(holds(entry, release) for release in inside)
    if entry.needs:
        outside = [release for release in RECORDED.values() if release not in inside]
        assert not any(holds(entry, release) for release in outside)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_names_the_upstream_symbol_that_its_needs_are_about(name: str) -> None:
    entry = ENTRIES[name]
    file, _, symbol = entry.symbol.partition(" ")
    module = file.removesuffix(".py").replace("/", ".")
    assert not entry.needs or f"{module}:{symbol}" in {need.symbol for need in entry.needs}


@pytest.mark.parametrize("name", NAMES)
def test_the_ranges_of_a_field_follow_on_one_another_without_a_gap(name: str) -> None:
    order = list(RECORDED)
    oldest_first = [each for key, each in ENTRIES.items() if key.endswith(f".{name}")][::-1]
    assert Version(oldest_first[0].first) <= Version(OLDEST)
    assert oldest_first[-1].last is None
    for older, newer in pairwise(oldest_first):
        assert older.last is not None
        assert order.index(newer.first) == order.index(older.last) + 1


@pytest.mark.parametrize("release", RECORDED)
def test_a_release_is_bound_by_entries_of_whose_range_it_is(release: str) -> None:
    known = RECORDED[release]
    for name in NAMES:
        assert known in among(getattr(SHIMS[known.shim], name), RECORDED.values())


def test_every_entry_is_needed_by_a_supported_release() -> None:
    assert idle(RECORDED.values()) == []


@pytest.mark.parametrize("oldest", RECORDED)
def test_an_entry_is_found_idle_once_its_last_release_goes(oldest: str) -> None:
    left = [each for each in RECORDED.values() if Version(each.release) >= Version(oldest)]
    can_go = {
        name
        for name, entry in ENTRIES.items()
        if entry.last is not None and Version(entry.last) < Version(oldest)
    }
    assert set(idle(left)) == can_go
    if oldest == list(RECORDED)[-1]:
        assert len(can_go) == len(ENTRIES) - len(NAMES)


def test_every_line_is_the_newest_one_or_has_an_entry_of_its_own() -> None:
    assert {key.partition(".")[0] for key in ENTRIES} == set(SHIMS)
