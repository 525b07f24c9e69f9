"""Every definition that is recorded of any release, changed in every way: no change survives."""

from __future__ import annotations

from pathlib import Path

import pytest
import skeleton
from mutations import mutations
from skeleton import source

import infera_shims
from infera_compat.cli import recorded
from infera_compat.contracts import Need, judge
from infera_compat.definitions import Definition, Source
from infera_compat.release import at
from infera_compat.shims import pick

SHIMS = {shim.name: shim for shim in infera_shims.order(None)}
RELEASES = recorded.releases()


def different(shim: str) -> list[tuple[Need, dict[str, Definition]]]:
    """Each need, with what stands in its module in each release where that is not the same."""
    found = {}
    for release in RELEASES.values():
        if release.shim != shim:
            continue
        for need in SHIMS[shim].needs:
            module = {
                symbol.partition(":")[2]: known
                for symbol, known in release.symbols.items()
                if symbol.startswith(f"{need.module}:")
            }
            found[need, source(module)] = need, module
    return list(found.values())


@pytest.mark.parametrize("shim", SHIMS)
def test_no_change_of_what_is_needed_goes_unnoticed(tmp_path: Path, shim: str) -> None:
    survivors, counted = [], 0
    for need, module in different(shim):
        file = tmp_path / next(iter(module.values())).place.partition(":")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        text = source(module)
        file.write_text(text, "utf-8")
        assert not judge(Source(tmp_path), [need], {}).moved
        done = list(mutations(text, need))
        assert len(done) >= 5
        for what, changed in done:
            assert changed != text
            file.write_text(changed, "utf-8")
            counted += 1
            moved = judge(Source(tmp_path), [need], {}).moved
            if not moved or need.symbol not in str(moved[0]):
                survivors.append(f"{need.symbol}: {what}")
    assert survivors == []
    assert counted > 500


@pytest.mark.parametrize("name", SHIMS)
def test_no_other_line_takes_a_release_whose_own_shim_something_moved_for(
    tmp_path: Path, name: str
) -> None:
    known = [each for each in RELEASES.values() if each.shim == name][-1]
    skeleton.write(tmp_path, known.release, known.symbols)
    for need in SHIMS[name].needs:
        file = tmp_path / known.symbols[need.symbol].place.partition(":")[0]
        text = file.read_text("utf-8")
        file.write_text(dict(mutations(text, need))["renamed"], "utf-8")
        shim, verdict = pick(at(tmp_path))
        file.write_text(text, "utf-8")
        assert shim.name == name
        assert need.symbol in {moved.need.symbol for moved in verdict.moved}
