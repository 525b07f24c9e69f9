"""The twelve questions: each is a gap until its record is there, and again once it says no."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_plan import KERNELS, NEWEST, PROSE, Desk, EagerOnly, FakeAttention, Never, OneRankAlone

from infera_compat.kernels import conformance
from infera_compat.matrix import cells
from infera_compat.plan import checks, questions, risks

TWELVE = range(1, 13)
Change = Callable[[Desk], None]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, FakeAttention())


def failing(*points: checks.Point) -> Change:
    """Verify says that these checks fail."""
    return lambda desk: desk.verify(**{point.check: "fail" for point in points})


def without(name: str) -> Change:
    """The author left something out."""
    return lambda desk: desk.prose("\n".join(x for x in PROSE.splitlines() if name not in x))


def gone(pattern: str) -> Change:
    """Records are removed."""

    def remove(desk: Desk) -> None:
        for file in desk.checkout.results.glob(pattern):
            file.unlink()

    return remove


BREAKS: dict[int, tuple[Change, ...]] = {
    1: (
        lambda desk: desk.seam(cells.FAILED),
        lambda desk: desk.seam(cells.REFUSED),
        gone(f"{NEWEST}.json"),
    ),
    2: (gone("bench-engine-*"), lambda desk: desk.engine(stock={"tok_s": 1.0})),
    3: (failing(checks.PAGED[1]), gone("verify-*")),
    4: (failing(*checks.CHUNKED["attention"]), gone("verify-*")),
    5: (*(failing(point) for point in checks.CAPTURE), gone("verify-*-h200*")),
    6: (failing(*checks.SHARDS), gone("verify-*")),
    7: (failing(checks.EAGER[0]), failing(checks.CAPTURE[0]), failing(checks.REST[-1])),
    8: (without("tolerance"), failing(checks.EAGER[0])),
    9: (
        gone("bench-attention-*"),
        lambda desk: desk.bench({"B": 4}),
        lambda desk: desk.prose(PROSE.partition("[[target]]")[0]),
    ),
    10: (failing(checks.CAPTURE[0]), gone("verify-*-h200*")),
    11: (
        failing(checks.REST[0]),
        lambda desk: desk.bench({}, {"B": 8, "ours_us": 21.0}),
        lambda desk: desk.prose(PROSE.replace("1.1", "3.0")),
    ),
    12: (
        without("justification"),
        gone("bench-attention-*"),
        lambda desk: desk.bench({"baseline": "TRITON_ATTN"}, {"baseline": "TRITON_ATTN", "B": 2}),
        lambda desk: desk.bench({"ours_us": 20.0}, {"ours_us": 20.0, "B": 2}),
        lambda desk: desk.bench({"chosen": False}, {"chosen": False, "B": 2}),
    ),
}


def test_a_plan_asks_for_each_check_of_verify_and_for_no_other() -> None:
    # Read, not imported: it needs torch.
    source = Path(str(conformance.__file__)).with_name("check.py").read_text("utf-8")
    names = re.findall(r"Check\(\s*\"([^\"]+)\"", source)
    assert sorted({point.check for point in checks.EVERY}) == sorted(names)


def test_there_are_twelve_and_each_has_a_break() -> None:
    assert len(questions.QUESTIONS) == 12
    assert set(BREAKS) == set(TWELVE)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_with_all_records_no_question_has_a_gap(tmp_path: Path, kernel: Any) -> None:
    desk = Desk(tmp_path, kernel)
    desk.all()
    if kernel.op != "attention":
        desk.bench(*({"baseline": "TRITON_MLA", "B": size, "M": size} for size in (1, 2)))
    assert desk.gaps() == {}


def test_without_any_record_each_is_a_gap_that_says_what_would_close_it(desk: Desk) -> None:
    found = questions.answers(desk.facts())
    assert [answer.number for answer in found if not answer.found.answered] == list(TWELVE)
    assert all(answer.found.told and answer.found.do for answer in found)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        pytest.param(number, change, id=f"{number}-{place}")
        for number, changes in BREAKS.items()
        for place, change in enumerate(changes)
    ],
)
def test_each_flips_to_a_gap_and_back(desk: Desk, number: int, change: Change) -> None:
    desk.all()
    assert number not in desk.gaps()
    change(desk)
    assert number in desk.gaps()
    desk.all()
    assert number not in desk.gaps()


@pytest.mark.parametrize("gpu", [None, "NVIDIA H200"])
def test_a_failed_check_is_a_gap_whichever_machine_it_failed_on(
    desk: Desk, gpu: str | None
) -> None:
    desk.all()
    desk.verify(gpu=gpu, determinism="fail")
    assert "determinism" in desk.gaps()[7]
    assert "determinism" in desk.gaps()[11]


def test_no_words_make_a_failed_check_good(desk: Desk) -> None:
    desk.all()
    desk.verify(determinism="fail")
    name = f"{risks.FAILS}determinism (NVIDIA H200)"
    risk = f'[[risk]]\nname = "{name}"\nwhat = "w"\nmitigation = "it is fine"\n'
    desk.prose(PROSE + risk)
    assert name in desk.gaps()[11]


def test_what_the_records_show_can_be_mitigated_by_its_name(desk: Desk) -> None:
    desk.all()
    desk.prose(PROSE.replace("1.1", "3.0"))
    assert risks.MISSED in desk.gaps()[11]
    risk = f'[[risk]]\nname = "{risks.MISSED}"\nwhat = "w"\nmitigation = "bound by latency"\n'
    desk.prose(PROSE.replace("1.1", "3.0") + risk)
    assert desk.gaps() == {}


def test_a_check_that_passed_on_a_cpu_alone_proves_no_graph(desk: Desk) -> None:
    desk.all()
    gone("verify-*-h200*")(desk)
    assert set(desk.gaps()) == {5, 7, 10, 11}


def test_not_run_is_not_passed(desk: Desk) -> None:
    desk.all()
    desk.verify(gpu=None, ranks="not run")
    assert desk.gaps() == {}, "the GPU's record still has it"
    desk.verify(ranks="not run")
    assert "not measured" in desk.gaps()[6]


def test_an_eager_only_kernel_needs_no_graphs_and_is_flagged(tmp_path: Path) -> None:
    desk = Desk(tmp_path, EagerOnly())
    desk.all()
    desk.verify(**{point.check: "not run" for point in checks.CAPTURE})
    assert desk.gaps() == {}
    flagged = questions.answers(desk.facts())[9].found.told
    assert "eager only" in flagged


def test_a_kernel_that_refuses_a_rank_s_shapes_has_a_gap(tmp_path: Path) -> None:
    desk = Desk(tmp_path, OneRankAlone())
    desk.all()
    assert "16 heads" in desk.gaps()[6]


def test_a_kernel_that_takes_nothing_has_a_gap(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Never())
    desk.all()
    assert "takes no layer" in desk.gaps()[6]


def test_experts_need_no_block_table(tmp_path: Path) -> None:
    desk = Desk(tmp_path, KERNELS[2])
    assert 3 not in desk.gaps()
