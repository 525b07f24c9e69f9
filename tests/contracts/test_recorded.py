"""What was recorded of the releases, and what the shims need, are one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import skeleton
from packaging.version import Version

import infera_shims
from infera_compat.cli import recorded
from infera_compat.cli.record import FILES, needs
from infera_compat.cli.recorded import CONTRACTS
from infera_compat.contracts import ANY, Need, judge
from infera_compat.definitions import ASYNC, Source
from infera_compat.install import OPS
from infera_compat.release import at
from infera_compat.shims import pick

ROOT = Path(__file__).parents[2]
RECORDED = recorded.releases()
SHIMS = {shim.name: shim for shim in infera_shims.order(None)}
UNCALLED = ("class", "variable", "attribute")


def unmet(shim: str, release: str) -> list[str]:
    symbols = RECORDED[release].symbols
    return [x.symbol for x in SHIMS[shim].needs if not x.met_by(symbols.get(x.symbol))]


def test_something_is_recorded_for_every_shim() -> None:
    assert {known.shim for known in RECORDED.values()} == set(SHIMS)


@pytest.mark.parametrize("release", RECORDED)
def test_a_record_is_written_back_as_it_was_read(release: str) -> None:
    text = (ROOT / CONTRACTS / f"{release}.json").read_text("utf-8")
    assert RECORDED[release].release == release
    assert recorded.load(text) == RECORDED[release]
    assert RECORDED[release].dump() == text


@pytest.mark.parametrize("release", RECORDED)
def test_all_that_its_shim_needs_is_recorded_and_holds(release: str) -> None:
    known = RECORDED[release]
    assert unmet(known.shim, release) == []
    assert set(known.symbols) <= {need.symbol for need in needs()}


@pytest.mark.parametrize("release", RECORDED)
def test_source_with_the_recorded_definitions_is_judged_like_the_release(
    tmp_path: Path, release: str
) -> None:
    known = RECORDED[release]
    skeleton.write(tmp_path, release, known.symbols)
    source = Source(tmp_path)
    for symbol, definition in known.symbols.items():
        found = source.find(symbol)
        assert found is not None
        assert replace(found, place="") == replace(definition, place="")
    for name in SHIMS:
        moved = [each.need.symbol for each in judge(source, SHIMS[name].needs, {}).moved]
        assert moved == unmet(name, release)
    shim, verdict = pick(at(tmp_path))
    assert (shim.name, verdict.moved) == (known.shim, ())


@pytest.mark.parametrize("release", RECORDED)
def test_the_version_alone_leads_to_its_shim_first(release: str) -> None:
    assert infera_shims.order(Version(release))[0].name == RECORDED[release].shim


@pytest.mark.parametrize("release", RECORDED)
def test_where_another_shim_holds_too_it_is_an_older_one_without_what_is_new(release: str) -> None:
    for name in set(SHIMS) - {RECORDED[release].shim}:
        if not unmet(name, release):
            own = SHIMS[RECORDED[release].shim]
            assert SHIMS[name].first < own.first
            assert set(SHIMS[name].needs) < set(own.needs)


@pytest.mark.parametrize("release", RECORDED)
def test_the_hashes_are_those_of_all_files_that_the_shim_reads(release: str) -> None:
    known = RECORDED[release]
    wanted = (known.symbols[need.symbol] for need in SHIMS[known.shim].needs)
    places = {definition.place.partition(":")[0] for definition in wanted}
    assert known.files
    for files in known.files.values():
        assert set(files) == places
        assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in files.values())


def test_the_plugins_own_data_are_those_records_and_nothing_else() -> None:
    expected: dict[str, dict[str, set[str]]] = {}
    for known in RECORDED.values():
        for files in known.files.values():
            for file, sha in files.items():
                expected.setdefault(known.shim, {}).setdefault(file, set()).add(sha)
    assert (ROOT / FILES).is_file()
    found = infera_shims.recorded()
    assert {
        shim: {file: set(shas) for file, shas in files.items()} for shim, files in found.items()
    } == expected


@pytest.mark.parametrize("release", RECORDED)
def test_every_name_that_is_replaced_is_registered_there_for_that_class(release: str) -> None:
    known = RECORDED[release]
    names = {name: classes for kind in known.registered.values() for name, classes in kind.items()}
    assert len(names) > 40
    replaced = {need.decorator: need.symbol for need in SHIMS[known.shim].needs if need.decorator}
    replaced[SHIMS[known.shim].moe_replaced.value.registered] = SHIMS[
        known.shim
    ].moe_replaced.value.symbol
    assert len(replaced) == 3
    for name, symbol in replaced.items():
        assert names[name] == [symbol]


@pytest.mark.parametrize("name", SHIMS)
def test_needs_can_be_told_apart_have_a_reason_and_say_what_fits_their_kind(name: str) -> None:
    shim = SHIMS[name]
    for group, wanted in shim.groups.items():
        assert len(set(wanted)) == len(wanted), group
    for need in shim.needs:
        assert need.why
        assert re.fullmatch(r"vllm(\.\w+)+:\w+(\.\w+)?", need.symbol)
        assert ANY not in (need.parameters or ())[:-1]
        assert need.kind.removeprefix(ASYNC) not in UNCALLED or need.parameters is None
        assert need.kind in ("variable", "attribute") or need.type is None
        assert need.kind == "class" or not (need.bases or need.decorator)
        assert set(dict(need.defaults)) <= set(need.parameters or ())


@pytest.mark.parametrize("name", SHIMS)
def test_a_symbol_that_is_needed_twice_is_needed_with_what_it_is(name: str) -> None:
    """As a class that is known, and as one that is replaced: the same kind, never two answers."""
    by_symbol: dict[str, list[Need]] = {}
    for need in SHIMS[name].needs:
        by_symbol.setdefault(need.symbol, []).append(need)
    for several in by_symbol.values():
        assert len({need.kind for need in several}) == 1


def test_lines_are_in_the_order_of_their_first_releases_and_named_like_their_modules() -> None:
    shims = [SHIMS[name] for name in infera_shims.LINES]
    assert [shim.first for shim in shims] == sorted({shim.first for shim in shims})
    assert set(SHIMS) == set(infera_shims.LINES)


@pytest.mark.parametrize("name", SHIMS)
def test_every_seam_can_be_bound_and_is_under_contract(name: str) -> None:
    shim = SHIMS[name]
    seams = {f"{op}.{seam}" for op in OPS for seam in shim.seams(op)}
    assert seams == set(infera_shims.BINDS)
    for op in OPS:
        for device in ("cpu", "cuda", "rocm"):
            assert all(shim.groups[f"{op}.{seam}"] for seam in shim.automatic(op, device))
