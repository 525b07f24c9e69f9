"""What was recorded of the releases, and what the shims need, are one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import infera_shims
from infera_compat import contracts
from infera_compat.contracts import ANY, Need, judge
from infera_compat.install import pick
from infera_compat.release import at

CONTRACTS = Path(__file__).parents[2] / "matrix" / "contracts"
RECORDED: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text("utf-8")) for file in CONTRACTS.glob("*.json")
}
RELEASES = sorted(RECORDED, key=Version)
SHIMS = {shim.name: shim for shim in infera_shims.order(None)}


def write(root: Path, entry: dict[str, Any]) -> None:
    """Write source below `root` with the definitions that were recorded, and their version."""
    classes: dict[str, dict[str, list[str]]] = {}
    for symbol, known in entry["symbols"].items():
        module, _, name = symbol.partition(":")
        owner, _, member = name.rpartition(".")
        body = classes.setdefault(module, {}).setdefault(owner, [])
        lines = definition(member, known)
        if known["kind"] == "class":
            classes[module].setdefault(member, [])[:0] = lines
        else:
            body += lines
    for module, owners in classes.items():
        text = []
        for owner, body in owners.items():
            if owner and not any(line.startswith("class ") for line in body):
                body = [f"class {owner}:", *body]
            text += [line if not owner or is_head(line) else f"    {line}" for line in body]
        file = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
        if (file.with_suffix("")).is_dir():
            file = file.with_suffix("") / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(text) + "\n", "utf-8")
    (root / "_version.py").write_text(f"__version__ = {entry['release']!r}\n", "utf-8")


def is_head(line: str) -> bool:
    return line.startswith(("class ", "@register"))


def definition(name: str, known: dict[str, Any]) -> list[str]:
    marks = [f"@register({mark!r})" for mark in known["decorators"]]
    if known["kind"] == "class":
        return [*marks, f"class {name}:", "pass"]
    if known["kind"] == "variable":
        return [f"{name} = None"]
    if known["kind"] == "attribute":
        return [f"def __init__(self): self.{name} = None"]
    if known["kind"] in ("classmethod", "staticmethod", "property"):
        marks.append(f"@{known['kind']}")
    return [*marks, f"def {name}({', '.join(known['parameters'])}): ..."]


def test_something_is_recorded_for_every_shim() -> None:
    assert {entry["shim"] for entry in RECORDED.values()} == set(SHIMS)


@pytest.mark.parametrize("release", RELEASES)
def test_a_record_holds_the_release_that_its_name_says(release: str) -> None:
    assert RECORDED[release]["release"] == release


@pytest.mark.parametrize("release", RELEASES)
def test_every_symbol_that_the_shim_needs_is_recorded_and_no_other(release: str) -> None:
    entry = RECORDED[release]
    assert list(entry["symbols"]) == [need.symbol for need in SHIMS[entry["shim"]].needs]
    assert all(known["symbol"] == symbol for symbol, known in entry["symbols"].items())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", SHIMS)
def test_a_release_is_met_by_the_shim_it_names_and_by_no_other(
    tmp_path: Path, release: str, name: str
) -> None:
    write(tmp_path, RECORDED[release])
    verdict = judge(tmp_path, SHIMS[name].needs, {})
    if name == RECORDED[release]["shim"]:
        assert [str(moved) for moved in verdict.moved] == []
    else:
        assert verdict.moved


@pytest.mark.parametrize("release", RELEASES)
def test_the_version_alone_leads_to_that_shim_first(tmp_path: Path, release: str) -> None:
    write(tmp_path, RECORDED[release])
    assert infera_shims.order(Version(release))[0].name == RECORDED[release]["shim"]
    assert pick(at(tmp_path))[0].name == RECORDED[release]["shim"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_hashes_are_those_of_all_files_that_the_shim_reads(release: str) -> None:
    entry = RECORDED[release]
    places = {known["place"].partition(":")[0] for known in entry["symbols"].values()}
    assert entry["files"]
    for files in entry["files"].values():
        assert set(files) == places
        assert all(re.fullmatch("[0-9a-f]{64}", sha) for sha in files.values())


def test_the_plugins_own_data_are_those_records_and_nothing_else() -> None:
    expected: dict[str, dict[str, set[str]]] = {}
    for entry in RECORDED.values():
        for files in entry["files"].values():
            for file, sha in files.items():
                expected.setdefault(entry["shim"], {}).setdefault(file, set()).add(sha)
    infera_shims.recorded.cache_clear()
    found = infera_shims.recorded()
    assert {
        shim: {f: set(shas) for f, shas in files.items()} for shim, files in found.items()
    } == expected


def test_no_hash_stands_for_a_file_that_is_missing() -> None:
    assert all(
        sha for files in infera_shims.recorded().values() for shas in files.values() for sha in shas
    )


@pytest.mark.parametrize("name", SHIMS)
def test_the_names_of_what_is_needed_can_be_told_apart_and_have_a_reason(name: str) -> None:
    needs = SHIMS[name].needs
    assert len({need.symbol for need in needs}) == len(needs)
    for need in needs:
        assert need.op in ("worker", "attention", "moe")
        assert need.why
        assert re.fullmatch(r"vllm(\.\w+)+:\w+(\.\w+)?", need.symbol)
        assert ANY not in (need.parameters or ())[:-1]
        assert (need.parameters is None) == (need.kind in ("class", "variable", "attribute"))


def test_lines_are_in_the_order_of_their_first_releases_and_named_like_their_modules() -> None:
    shims = [SHIMS[name] for name in infera_shims.LINES]
    assert [shim.first for shim in shims] == sorted({shim.first for shim in shims})
    assert set(SHIMS) == set(infera_shims.LINES)


@pytest.mark.parametrize("name", SHIMS)
def test_what_the_shim_reads_of_a_moe_layer_is_under_contract(name: str) -> None:
    shim = SHIMS[name]
    assert shim.moe_layer in {need.symbol for need in shim.needs}
    seams = Path(infera_shims.__file__).parent / "seams"
    for device in ("cpu", "cuda", "rocm"):
        assert (seams / f"{shim.moe_seam(device)}.py").is_file()


@pytest.mark.parametrize("name", SHIMS)
def test_no_two_shims_need_the_same(name: str) -> None:
    others: list[tuple[Need, ...]] = [shim.needs for shim in SHIMS.values() if shim.name != name]
    assert SHIMS[name].needs not in others


def test_a_record_is_written_back_as_it_was_read(tmp_path: Path) -> None:
    for release in RELEASES:
        write(tmp_path / release, RECORDED[release])
        needs = SHIMS[RECORDED[release]["shim"]].needs
        for found in contracts.definitions(tmp_path / release, needs):
            assert found is not None
            known = RECORDED[release]["symbols"][found.symbol]
            assert (found.kind, list(found.decorators)) == (known["kind"], known["decorators"])
