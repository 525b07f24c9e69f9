"""The page: its sections, its numbers from the records, and no more than they say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_plan import KERNELS, NEWEST, Desk, FakeAttention, FakeMla, Never
from typer.testing import CliRunner

from infera_compat.cli import plan as command
from infera_compat.cli.app import app
from infera_compat.matrix import cells
from infera_compat.plan import page, points, probing

SECTIONS = (
    "Op summary",
    "Plug-in point per release",
    "KV-cache compatibility",
    "Continuous batching",
    "CUDA-graph audit",
    "Tensor and pipeline parallelism",
    "Testing",
    "Benchmarking",
    "Risk register",
    "Out of scope",
    "What was tried",
)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, FakeAttention())


def text(desk: Desk) -> str:
    return page.page(desk.facts())


def section(desk: Desk, number: int) -> str:
    begins = text(desk).partition(f"\n## {number}. ")[2]
    return begins.partition("\n## ")[0]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("measured", [False, True])
def test_a_page_has_its_sections_none_of_them_empty(
    tmp_path: Path, kernel: Any, measured: bool
) -> None:
    desk = Desk(tmp_path, kernel)
    if measured:
        desk.all()
    assert tuple(title for title, _ in page.SECTIONS) == SECTIONS
    for number, title in enumerate(SECTIONS, start=1):
        told = section(desk, number)
        assert told.startswith(f"{title}\n\n")
        assert len(told) > len(title) + 10
    body = [line for line in text(desk).splitlines() if line.startswith("| ")]
    heads = {body[place - 1] for place, line in enumerate(body) if line.startswith("| ---")}
    assert not any("|  |" in line for line in body if line not in heads)


def test_the_summary_is_the_module_s_first_paragraph(desk: Desk) -> None:
    told = section(desk, 1)
    assert "A kernel that says yes to almost all, for tests of its plan." in told
    assert "second paragraph" not in told


def test_what_it_does_not_take_stands_there_with_the_reason(desk: Desk) -> None:
    assert "sinks: found sinks, expected none" in section(desk, 1)
    assert "feature sinks: stays stock (found sinks, expected none)" in section(desk, 10)


def test_a_kernel_that_takes_nothing_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Never())
    assert "It takes no layer" in section(desk, 1)
    assert "found float16, expected nothing" in section(desk, 1)


def test_nothing_measured_says_not_measured_and_by_what(desk: Desk) -> None:
    for number, command_ in (
        (5, "infera-compat verify fake_attention --device cuda"),
        (7, "infera-compat verify fake_attention"),
        (8, "infera-compat bench attention --json"),
        (8, "infera-compat bench engine --json"),
        (6, "infera-compat bench engine --json"),
    ):
        told = section(desk, number)
        assert page.NOT_MEASURED in told
        assert command_ in told


def test_no_bench_is_named_for_what_none_measures(tmp_path: Path) -> None:
    desk = Desk(tmp_path, FakeMla())
    told = section(desk, 8)
    assert "no bench of ours has cells of MLA" in told
    assert "infera-compat bench" not in told


def test_its_numbers_are_the_record_s(desk: Desk) -> None:
    desk.all()
    before = section(desk, 8)
    assert "2.00x" in before
    assert "123.5" in before
    desk.bench({"ours_us": 5.0}, {"B": 8, "ours_us": 5.0})
    desk.engine(ours={"tok_s": 77.25, "ttft_ms": 1, "tpot_ms": 1, "start_s": 1, "peak_gib": 1})
    after = section(desk, 8)
    assert "4.00x" in after
    assert "77.25" in after
    assert "123.5" not in after
    assert "2.00x" not in after.replace("/ floor", "")


def test_a_failed_check_stands_there_as_failed(desk: Desk) -> None:
    desk.all()
    desk.verify(graphs="fail")
    assert "**fail**" in section(desk, 5)
    assert "**failed**" in section(desk, 7)
    assert "fails: graphs" in section(desk, 9)


def test_a_record_that_does_not_count_is_told_with_the_reason(desk: Desk) -> None:
    desk.bench({"stock_us": None})
    told = section(desk, 8)
    assert "do not count" in told
    assert "stock vLLM was not measured beside it" in told
    assert "10.0" not in told


@pytest.mark.parametrize("status", [cells.EQUAL, cells.REFUSED, cells.FAILED])
def test_the_plug_in_point_has_the_matrix_s_status(desk: Desk, status: str) -> None:
    desk.seam(status)
    (row,) = [x for x in section(desk, 2).splitlines() if x.startswith(f"| {NEWEST} |")]
    assert row.split(" | ")[5] == status
    assert ("a reason" in section(desk, 2)) == (status != cells.EQUAL)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_each_release_s_shim_names_the_plug_in_point_s_symbol(tmp_path: Path, kernel: Any) -> None:
    found = Desk(tmp_path, kernel).facts().points
    assert [point.release for point in found] == [NEWEST, "0.22.0"]
    for point in found:
        assert point.symbol is not None
        assert point.symbol.endswith(points.POINTS[kernel.op].symbol)


def test_the_layout_of_a_cache_is_that_of_each_release(desk: Desk) -> None:
    rows = [x for x in section(desk, 3).splitlines() if x.startswith("| FLASH_ATTN |")]
    assert [row.split(" | ")[1:4] for row in rows] == [
        ["0.22.0", "`(2, B, N, H, D)`", "yes, by strided views"],
        [NEWEST, "`(B, H, N, 2D)`", "yes, by strided views"],
    ]
    assert all(row.endswith("| not measured |") for row in rows)


def test_over_which_backends_a_kernel_is_bound_is_the_adapters_list(desk: Desk) -> None:
    rows = [x.split(" | ") for x in section(desk, 3).splitlines()]
    bound = {(row[0].strip("| "), row[1]): row[3] for row in rows if len(row) == 5}
    assert bound["CPU_ATTN", "0.22.0"] == "no: its metadata is read from 0.24 on"
    assert bound["CPU_ATTN", NEWEST] == "yes, its layers write the cache themselves"
    assert bound["FLASHINFER", NEWEST].startswith("no: its metadata is not read")
    assert bound["ROCM_ATTN", f"0.22.0 – {NEWEST}"].startswith("no: its contents are packed")


def test_a_probe_of_the_views_is_told(desk: Desk) -> None:
    row = {"backend": "FLASH_ATTN", "status": "proved"}
    desk.seam(kv_views={"rows": [row]})
    assert f"{NEWEST}: proved" in section(desk, 3)
    desk.seam(kv_views={"rows": [row, {**row, "status": "not run", "reason": "no | GPU"}]})
    assert f"{NEWEST}: not run: no \\| GPU" in section(desk, 3)


def test_the_grid_builds_a_spec_of_every_case() -> None:
    for kernel in KERNELS:
        found = probing.ask(kernel, str)
        assert found.around is not None
        assert len(found.answers) == len(probing.GRID[kernel.op])


@pytest.fixture
def installed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The desk's kernel is the one that is registered, and there is a torch of names alone."""

    name, kernel = desk.kernel.name, desk.kernel
    registry = SimpleNamespace(
        entries={name: SimpleNamespace(distribution="fakes")}, load={name: kernel}.__getitem__
    )
    torch = ModuleType("torch")
    for dtype in (*probing.HALVES, probing.FP8):
        setattr(torch, dtype, dtype)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(command.registry, "find", lambda: registry)
    return desk


def run(desk: Desk, *words: str) -> tuple[int, str]:
    ran = CliRunner().invoke(
        app,
        ["plan", desk.kernel.name, "--checkout", str(desk.root), *words],
        env={"COLUMNS": "300"},
    )
    return ran.exit_code, ran.output


def test_check_is_zero_only_with_no_gap_and_a_page_of_today(installed: Desk) -> None:
    installed.all()
    status, told = run(installed, "--check")
    assert status == 1
    assert "Stale: there is no" in told
    assert run(installed)[0] == 0
    assert installed.file.read_text() == text(installed)
    status, told = run(installed, "--check")
    assert status == 0, told
    assert "No question has a gap" in told
    installed.bench({}, {"B": 16})
    status, told = run(installed, "--check")
    assert status == 1
    assert "is not what would be written now" in told
    assert run(installed)[0] == 0
    assert run(installed, "--check")[0] == 0
    installed.verify(graphs="not run")
    run(installed)
    status, told = run(installed, "--check")
    assert status == 1
    assert "Stale" not in told
    assert told.count(" gap ") >= 3


def test_a_page_may_be_put_elsewhere_with_its_author_s_part_beside_it(
    installed: Desk, tmp_path: Path
) -> None:
    installed.all()
    file = tmp_path / "elsewhere.md"
    file.with_suffix(".toml").write_text('tolerance = "said elsewhere"')
    assert run(installed, "-o", str(file))[0] == 0
    assert "said elsewhere" in file.read_text()
    assert not installed.file.exists()


def test_json_names_every_question(installed: Desk) -> None:
    import json

    status, told = run(installed, "--check", "--json")
    body = json.loads(told)
    assert status == 1
    assert len(body["questions"]) == 12
    assert body["gaps"] == 12
    assert body["stale"]
    assert "`" not in told


def test_a_name_that_no_kernel_has_is_told_with_those_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, FakeAttention())
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    status, told = run(desk)
    assert status == 2
    assert "there is no kernel fake_attention" in told
    assert "kernels " in told


def test_without_torch_it_says_what_is_missing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    status, told = run(desk)
    assert status == 2
    assert "Expected: PyTorch" in told
