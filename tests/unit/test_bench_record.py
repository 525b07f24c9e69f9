"""Runs of a bench: what is taken down, what goes on after a cut, and what comes of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_bench import RATES, RUN, TOLD, FakeStock, drained, experts_subject, subject

from infera_compat.bench import cells, goals, record, run, tables
from infera_compat.bench.record import ATTENTION, EXPERTS, Record
from infera_compat.errors import CompatError, Refused
from infera_compat.kernels.table import Table
from infera_compat.plan import benches


def begun(file: Path | None = None, resume: bool = False, **told: Any) -> Record:
    return Record.begin(ATTENTION, {**TOLD, **told}, RUN, file, resume)


def measured(stock: FakeStock, *subjects: run.Subject, into: Record | None = None) -> Record:
    kept = into or begun()
    drained(run.run(subjects or [subject()], stock, kept, RATES, lambda *_: None))
    return kept


def test_a_cell_is_taken_down_with_what_the_issue_asks_for() -> None:
    cell = measured(FakeStock()).cells[0]
    wanted = {"kernel", "phase", "B", "S", "q", "heads", "kv_heads", "head_size", "block", "mode"}
    wanted |= {"cache", "baseline", "stock_us", "ours_us", "floor_us", "chosen"}
    assert wanted <= cell.keys()
    assert cell["stock_us"] / cell["ours_us"] == pytest.approx(1.5)
    assert cell["ours_us"] / cell["floor_us"] == pytest.approx(2)


def test_a_cell_of_experts_too() -> None:
    kept = Record.begin(EXPERTS, TOLD, RUN, None, False)
    drained(run.run([experts_subject()], FakeStock(), kept, RATES, lambda *_: None))
    wanted = {"kernel", "E", "k", "K", "N", "M", "mode", "stock_us", "ours_us", "floor_us"}
    assert wanted <= kept.cells[0].keys()
    assert len(kept.cells) == len(cells.experts())


def test_each_cell_is_in_the_file_before_the_next_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    seen = []

    def told(*_: Any) -> None:
        seen.append(len(json.loads(file.read_text())["cells"]) if file.exists() else 0)

    several = cells.attention(8)[:4]
    drained(run.run([subject(several=several)], FakeStock(), begun(file), RATES, told))
    assert seen == [0, 1, 2, 3]


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    file, several = tmp_path / "bench.json", cells.attention(8)[:6]
    first = FakeStock(raises={several[3].name: KeyboardInterrupt()})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        measured(first, subject(several=several), into=begun(file))
    second = FakeStock()
    kept = measured(second, subject(several=several), into=begun(file, resume=True))
    assert second.measured == [cell.name for cell in run.grouped(several)[3:]]
    assert [cell["run"] for cell in kept.cells] == [0, 0, 0, 1, 1, 1]
    assert len(record.read(file, ATTENTION)["runs"]) == 2


def test_a_record_that_is_there_is_not_written_over_unasked(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    measured(FakeStock(), subject(several=cells.attention(8)[:1]), into=begun(file))
    with pytest.raises(CompatError, match="--resume to go on"):
        begun(file)


@pytest.mark.parametrize("name", record.SAME)
def test_another_machine_s_or_build_s_record_is_not_gone_on_with(tmp_path: Path, name: str) -> None:
    file = tmp_path / "bench.json"
    measured(FakeStock(), subject(several=cells.attention(8)[:1]), into=begun(file))
    with pytest.raises(CompatError, match="can't be gone on with"):
        begun(file, resume=True, **{name: "another"})


def test_nor_one_of_other_sources(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    measured(FakeStock(), subject(several=cells.attention(8)[:1]), into=begun(file))
    with pytest.raises(CompatError, match="other sources of infera_decode"):
        begun(file, resume=True, sources={"infera_decode": "1" * 16})
    both = begun(file, resume=True, sources={"infera_attention": "1" * 16}).body["sources"]
    assert both.keys() == {"infera_decode", "infera_attention"}


def test_a_cell_that_failed_is_told_and_the_others_go_on() -> None:
    stock = FakeStock(raises={"B2 S512": ValueError("outputs differ"), "B4 S512": Refused("no")})
    kept, told = begun(), []
    for done in run.run([subject()], stock, kept, RATES, lambda *_: None):
        told.append(done)
    failed = [done for done in told if done.failed]
    assert [done.why for done in failed] == ["ValueError: outputs differ"]
    assert {one["why"] for one in kept.body["refused"]} == {"ValueError: outputs differ", "no"}
    assert len(kept.cells) == len(cells.attention(8)) - 2


def test_without_a_clock_nothing_is_taken_down() -> None:
    kept = begun()
    done = drained(run.run([subject()], FakeStock(), kept, None, lambda *_: None))
    assert not kept.cells
    assert all("stock_us" not in (one.found or {}) for one in done)


def test_what_a_table_leaves_to_stock_is_not_chosen() -> None:
    body = tables.table(measured(FakeStock(by_name={"B8 ": 0.9})).body, "infera_decode")
    table = as_table(body)
    assert not table.always
    kept = measured(FakeStock(by_name={"B8 ": 0.9}), subject(table=table))
    cold = [c for c in kept.cells if (c["cache"], c["mode"]) == ("cold", "graph")]
    assert {c["chosen"] for c in cold if c["B"] == 8} == {False}
    assert {c["chosen"] for c in cold if c["B"] == 1} == {True}


def as_table(body: dict[str, Any]) -> Table:
    from infera_compat.kernels import table

    return table._parse(body)


def test_a_table_has_the_worst_length_of_each_key() -> None:
    kept = measured(FakeStock(by_name={"B4 S8192 32/8x128 block 16": 1.01}))
    rows = tables.table(kept.body, "infera_decode")["cells"]
    (row,) = (
        row
        for row in rows
        if (row["baseline"], row["batch"], row["heads"], row["kv_heads"], row["block_size"])
        == ("FLASH_ATTN", 4, 32, 8, 16)
    )
    assert row["stock_us"] / row["ours_us"] == pytest.approx(1.01)
    keys = [tuple(row[k] for k in row if not k.endswith("_us")) for row in rows]
    assert len(set(keys)) == len(keys)


def test_a_table_of_experts_is_one_that_a_kernel_reads(tmp_path: Path) -> None:
    kept = Record.begin(EXPERTS, TOLD, RUN, None, False)
    stock = FakeStock(by_name={"M64 ": 0.9})
    drained(run.run([experts_subject()], stock, kept, RATES, lambda *_: None))
    file = tables.write(kept.body, "infera_experts", tmp_path)
    assert file.name == "infera_experts-nvidia-h200.json"
    sizes = {"experts": 8, "top_k": 2, "hidden": 4096, "intermediate": 14336}
    table = Table.read(file)
    assert table.prefers("TritonExperts", tokens=128, **sizes)
    assert not table.prefers("TritonExperts", tokens=40, **sizes)


def test_no_table_without_cells_of_the_kernel() -> None:
    with pytest.raises(CompatError, match="no table of nobody"):
        tables.table(measured(FakeStock()).body, "nobody")


def score(kept: Record, part: str) -> goals.Score:
    (found,) = (one for one in goals.scores(kept.body["kind"], kept.cells) if part in one.what)
    return found


@pytest.mark.parametrize(("ratio", "reached"), [(1.36, True), (1.34, False)])
def test_a_goal_is_the_geometric_mean_of_its_cells(ratio: float, reached: bool) -> None:
    found = score(measured(FakeStock(ratio)), "B up to 8")
    assert found.reached is reached
    assert found.found == pytest.approx(ratio)


def test_goals_of_decoding_speak_of_graphs_and_cold_caches_alone() -> None:
    kept = measured(FakeStock(1.4, {"warm": 9.0, "eager": 9.0}))
    assert score(kept, "B up to 8").found == pytest.approx(1.4)


def test_what_is_left_to_stock_counts_as_one() -> None:
    kept = measured(FakeStock(4.0), subject(table=Table()))
    assert score(kept, "B up to 8").found == pytest.approx(1.0)
    assert not score(kept, "worst cell").reached  # it is chosen nowhere


def test_the_worst_cell_is_named() -> None:
    kept = measured(FakeStock(1.4, {"B64 S8192 32/8": 0.97}))
    found = score(kept, "worst cell")
    assert not found.reached
    assert "B64 S8192" in found.what
    assert found.found == pytest.approx(0.97)


def test_groups_tell_of_every_cell_once() -> None:
    kept = measured(FakeStock())
    groups = goals.groups(ATTENTION, kept.cells)
    assert sum(len(group.cells) for group in groups) == len(kept.cells)
    assert len({group.key for group in groups}) == len(groups)
    assert groups[0].floor("ours_us") == pytest.approx(2)


def test_a_plan_reads_the_record(tmp_path: Path) -> None:
    from infera_compat.matrix.checkout import Checkout

    file = tmp_path / "matrix/results/bench-attention-h200-0.33.0.json"
    kept = measured(FakeStock(), into=begun(file))
    found = benches.read(Checkout(tmp_path), "infera_decode", "attention", ["0.33.0"])
    assert not found.refused
    assert len(found.cells) == len(kept.cells)


DAMAGE: dict[str, tuple[Any, str]] = {
    "kind": ("banana", "the kind 'banana'"),
    "sources": ([], "sources []"),
    "runs": (7, "runs is a int, no list"),
    "refused": ([{"name": "x", "kernel": "y"}], "refused[0] has no why"),
    "cells": ([7], "cells[0] is a int, no object"),
}
CELL: dict[str, tuple[Any, str]] = {
    "kernel": (None, "cells[0].kernel is None, no text"),
    "B": (True, "cells[0].B is True, no whole number above zero"),
    "stock_us": (float("nan"), "cells[0].stock_us is nan, no number above zero"),
    "ours_us": (-1.0, "cells[0].ours_us is -1.0, no number above zero"),
    "floor_us": (10**400, "no number above zero"),
    "chosen": (1, "cells[0].chosen is 1, no true or false"),
}


@pytest.mark.parametrize("field", [*DAMAGE, *CELL])
def test_what_is_wrong_of_a_record_is_named(tmp_path: Path, field: str) -> None:
    file = tmp_path / "bench.json"
    measured(FakeStock(), subject(several=cells.attention(8)[:1]), into=begun(file))
    body = record.read(file)
    value, said = (DAMAGE | CELL)[field]
    (body if field in DAMAGE else body["cells"][0])[field] = value
    file.write_text(json.dumps(body), "utf-8")
    with pytest.raises(CompatError) as caught:
        record.read(file)
    assert "is damaged" in caught.value.what
    assert said in caught.value.found
    if field in CELL:
        del body["cells"][0][field]
        file.write_text(json.dumps(body), "utf-8")
        with pytest.raises(CompatError, match=rf"cells\[0\] has no {field}"):
            record.read(file)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"kind": "attention"}', "[" * 100_000])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, body: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(body)
    with pytest.raises(CompatError, match=r"bench\.json is damaged"):
        record.read(file)
