"""Every symbol that is needed, changed in every way in the installed release: no change survives.

By CONTRACTS_ROOT another release's package folder can be given, an unpacked wheel's say.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mutations import mutations

from infera_compat.contracts import judge
from infera_compat.definitions import Source
from infera_compat.release import Release, at, installed
from infera_compat.shims import pick

BUDGET_S = 0.3


@pytest.fixture(scope="module")
def judged() -> Release:
    root = os.environ.get("CONTRACTS_ROOT")
    found = at(Path(root)) if root else installed()
    assert found is not None
    return found


def copied(release: Release, folder: Path) -> dict[str, Path]:
    """The files that the release's shim reads, copied; by module."""
    files = {}
    source = Source(release.root)
    for module in {need.module for need in pick(release)[0].needs}:
        files[module] = folder / source.path(module)
        files[module].parent.mkdir(parents=True, exist_ok=True)
        files[module].write_bytes((release.root / source.path(module)).read_bytes())
    return files


def test_no_change_of_what_is_needed_goes_unnoticed(judged: Release, tmp_path: Path) -> None:
    shim = pick(judged)[0]
    survivors, counted = [], 0
    for module, file in copied(judged, tmp_path).items():
        text = file.read_text("utf-8")
        # Other modules stand as they were, and are not read again for each change.
        needs = [need for need in shim.needs if need.module == module]
        assert not judge(Source(tmp_path), needs, {}).moved
        for need in needs:
            for what, changed in mutations(text, need):
                file.write_text(changed, "utf-8")
                counted += 1
                moved = judge(Source(tmp_path), needs, {}).moved
                named = [str(each) for each in moved if each.need == need]
                if not named or need.symbol not in named[0]:
                    survivors.append(f"{need.symbol}: {what}")
        file.write_text(text, "utf-8")
    assert survivors == []
    assert counted > 10 * len(shim.needs)


def test_a_whole_comparison_names_that_symbol_and_what_hangs_on_it_alone(
    judged: Release, tmp_path: Path
) -> None:
    shim = pick(judged)[0]
    files = copied(judged, tmp_path)
    for need in shim.needs:
        text = files[need.module].read_text("utf-8")
        changed = dict(mutations(text, need))["renamed"]
        files[need.module].write_text(changed, "utf-8")
        verdict = judge(Source(tmp_path), shim.needs, {})
        files[need.module].write_text(text, "utf-8")
        moved = {each.need.symbol for each in verdict.moved}
        assert need.symbol in moved
        # A class goes with its members, a constructor with what it sets.
        owner = need.symbol.removesuffix(".__init__")
        assert all(each == need.symbol or each.startswith(f"{owner}.") for each in moved)
        assert verdict.held == verdict.of - len(verdict.moved)


def test_reading_every_definition_takes_a_third_of_a_second_at_most(judged: Release) -> None:
    shim = pick(judged)[0]
    times = []
    for _ in range(3):
        began = time.process_time()
        verdict = judge(Source(judged.root), shim.needs, {})
        times.append(time.process_time() - began)
        assert not verdict.moved
        assert not verdict.known
    assert min(times) <= BUDGET_S, times
