"""What of a record counts in a plan, and what does not, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_plan import NEWEST, PROSE, Desk, FakeAttention

from infera_compat.errors import CompatError
from infera_compat.plan import benches, page
from infera_compat.plan.author import Target


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path, FakeAttention())
    desk.all()
    return desk


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ({"baseline_release": "0.22.0"}, "its baseline is vLLM 0.22.0, the kernel ran in 0.33.0"),
        ({"stock_us": None}, "stock vLLM was not measured"),
        ({"ours_us": None}, "the kernel was not measured"),
        ({"baseline": "reference_attention"}, "no backend of stock vLLM"),
        ({"baseline": None}, "no backend of stock vLLM"),
        ({"B": None}, "no B says the batch size"),
        ({"kernel": None}, "which kernel ran"),
    ],
)
def test_a_cell_that_is_not_against_stock_of_its_release_does_not_count(
    desk: Desk, cell: dict[str, Any], why: str
) -> None:
    desk.bench(cell, {"B": 8, **{key: value for key, value in cell.items() if key != "B"}})
    if "B" not in cell:
        assert 9 in desk.gaps()
    assert why in "; ".join(desk.facts().benches.refused)


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("0.22.0", {}, "its name says another release"),
        ("0.99.0", {"release": "0.99.0"}, "none of matrix/releases.toml"),
    ],
)
def test_a_record_of_another_release_than_it_says_does_not_count(
    desk: Desk, name: str, more: dict[str, Any], why: str
) -> None:
    (desk.checkout.results / f"bench-attention-h200-{NEWEST}.json").unlink()
    desk.bench(name=name, **more)
    assert why in desk.gaps()[9]


def test_another_kernel_s_numbers_are_not_this_one_s(desk: Desk) -> None:
    desk.bench(kernel="other_attention")
    assert 9 in desk.gaps()
    assert desk.facts().benches.refused == ()


def test_a_record_may_hold_two_kernels(desk: Desk) -> None:
    desk.bench({}, {"B": 8}, {"B": 16, "kernel": "other"})
    (bench,) = desk.facts().benches.counted
    assert bench.batches == (1, 8)


def test_a_cell_left_to_stock_counts_as_one(desk: Desk) -> None:
    desk.bench({"stock_us": 40.0}, {"B": 8, "chosen": False, "ours_us": None})
    (group,) = desk.facts().benches.groups
    assert [benches.ratio(cell) for cell in group.cells] == [4.0, 1.0]
    assert benches.geomean(map(benches.ratio, group.cells)) == pytest.approx(2.0)
    assert group.worst == 4.0


def test_a_target_speaks_of_the_cells_that_it_names(desk: Desk) -> None:
    desk.bench({}, {"B": 64, "stock_us": 40.0}, {"B": 64, "phase": "prefill", "stock_us": 90.0})
    found = desk.facts().benches

    def reached(**of: Any) -> list[float]:
        return list(benches.reached(Target("t", 1.0, **of), found).values())

    assert reached(batch_max=8) == [pytest.approx(2.0)]
    assert reached(batch_min=16, phase="decode") == [pytest.approx(4.0)]
    assert reached(phase="prefill") == [pytest.approx(9.0)]
    assert reached(baseline="TRITON_ATTN") == []


def test_a_record_of_a_kernel_with_a_longer_name_is_not_this_one_s(desk: Desk) -> None:
    for file in desk.checkout.results.glob("verify-*"):
        file.unlink()
    body = {"kernel": f"{desk.kernel.name}-2"}
    desk.put(f"verify-{desk.kernel.name}-2-cpu", body)
    assert desk.facts().proofs.records == ()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"op": "experts"}, "op experts"),
        ({"outcomes": [{"check": "x"}]}, "KeyError"),
        ({"outcomes": [{"check": "x", "status": "ok", "detail": "", "cases": 1}]}, "'ok'"),
        ({"refused": ["a case"]}, "TypeError"),
        ({"kernel": None}, None),
    ],
)
def test_a_damaged_record_of_verify_is_named(
    desk: Desk, change: dict[str, Any], found: str | None
) -> None:
    file = desk.checkout.results / f"verify-{desk.kernel.name}-h200.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    if found is None:
        assert [proof.on_gpu for proof in desk.facts().proofs.records] == [False]
        return
    with pytest.raises(CompatError) as error:
        desk.facts()
    assert str(file) in str(error.value)
    assert found in error.value.found


def test_a_damaged_record_of_bench_is_named(desk: Desk) -> None:
    desk.put(f"bench-attention-h200-{NEWEST}", {"gpu": "x"})
    with pytest.raises(CompatError, match="no release"):
        desk.facts()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tolerence = 'x'", "tolerence"),
        ("tolerance = ''", "tolerance"),
        ("tolerance = 3", "tolerance = 3"),
        ("out_of_scope = 'x'", "out_of_scope"),
        ("out_of_scope = [3]", "3"),
        ("[[risk]]\nname = 'x'\nwhat = 'y'", "without mitigation"),
        ("[[risk]]\nname = 'x'\nwhat = 'y'\nmitigation = ''", "mitigation = ''"),
        ("[[risk]]\nname = 'x'\nwhat = 'y'\nmitigation = 'z'\nowner = 'w'", "owner"),
        ("[[target]]\nwhat = 'x'\nratio = '2'", "ratio = '2'"),
        ("[[target]]\nwhat = 'x'\nratio = 2\nbatch_min = true", "batch_min = True"),
        ("[[tried]]\nwhat = 'x'\nfound = 'y'", "without predicted"),
        ("[risk]\nname = 'x'", "risk = "),
        ("tolerance", "Expected '='"),
    ],
)
def test_an_author_s_file_that_can_t_be_meant_says_why(desk: Desk, text: str, found: str) -> None:
    desk.prose(text)
    with pytest.raises(CompatError) as error:
        desk.facts()
    assert found in error.value.found


def test_an_author_s_file_may_say_all_of_it(desk: Desk) -> None:
    desk.prose(
        'plug_in_point = "p"\nout_of_scope = ["o"]\n' + PROSE + "batch_min = 1\n"
        '[[risk]]\nname = "n"\nwhat = "w"\nmitigation = "m"\n'
        '[[tried]]\nwhat = "less"\npredicted = "more"\nfound = "the same"\n'
    )
    author = desk.facts().author
    assert (author.plug_in_point, author.out_of_scope) == ("p", ("o",))
    assert (author.risks[0].name, author.targets[0].batch_min) == ("n", 1)
    assert author.tried[0].found == "the same"


@pytest.fixture
def unbenched(desk: Desk) -> Desk:
    for file in desk.checkout.results.glob("bench-engine-*"):
        file.unlink()
    return desk


def test_a_kernel_beside_stock_in_an_engine_says_which_release_it_was(unbenched: Desk) -> None:
    desk = unbenched
    assert 2 in desk.gaps()
    desk.beside_stock()
    assert 2 not in desk.gaps()
    told = page.page(desk.facts())
    assert "7 of 8" in told
    assert "0.012" in told
    desk.beside_stock(worst_logprob=0.5, same_text=3)
    assert "3 of 8" in page.page(desk.facts())
    assert "0.500" in page.page(desk.facts())


def test_a_kernel_unlike_stock_in_an_engine_is_a_gap(desk: Desk) -> None:
    desk.engine()
    desk.beside_stock(status="failed")
    assert "unlike stock" in desk.gaps()[2]


def test_another_kernel_s_engines_say_nothing_of_this_one(unbenched: Desk) -> None:
    desk = unbenched
    desk.beside_stock(kernels={"INFERA_ATTENTION": "another"})
    assert 2 in desk.gaps()
