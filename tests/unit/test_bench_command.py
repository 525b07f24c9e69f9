"""`infera-compat bench`: what it prints and draws from a record, and where it cannot begin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_bench import RATES, RUN, TOLD, FakeStock, drained, experts_subject, subject

from infera_compat.bench import run
from infera_compat.bench.record import ATTENTION, ENGINE, EXPERTS, Record

PNG = b"\x89PNG"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from infera_compat.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "bench", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "240"},
    )


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    file = tmp_path / "attention.json"
    kept = Record.begin(ATTENTION, TOLD, RUN, file, False)
    subjects = [subject(), subject("infera_attention", max_query_len=None)]
    stock = FakeStock(by_name={"B256 ": 0.9, "prefill": 4.5})
    drained(run.run(subjects, stock, kept, RATES, lambda *_: None))
    return file


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    file = tmp_path / "experts.json"
    kept = Record.begin(EXPERTS, TOLD, RUN, file, False)
    drained(run.run([experts_subject()], FakeStock(), kept, RATES, lambda *_: None))
    return file


def test_show_has_the_groups_and_the_goals(attention: Path, experts: Path) -> None:
    done = command("show", str(attention), str(experts))
    assert done.returncode == 0, done.stderr
    for text in (
        "stock vLLM 0.33.0",
        "infera_decode: decode over FLASH_ATTN, B up to 8",
        "not reached",
        "E8 k2 K4096 N14336",
        "infera_experts: M from 512",
    ):
        assert text in done.stdout


def test_the_picture_comes_from_records_alone(attention: Path, experts: Path) -> None:
    picture = attention.parent / "bench.png"
    done = command("plot", str(attention), str(experts), "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(PNG)


def test_a_record_without_cells_gives_no_picture(tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    Record.begin(ATTENTION, TOLD, RUN, file, False).save()
    done = command("plot", str(file), "--plot", str(tmp_path / "bench.png"))
    assert done.returncode == 2
    assert "there is nothing to draw" in done.stderr


def test_a_record_without_cells_gives_no_table(tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    Record.begin(ATTENTION, TOLD, RUN, file, False).save()
    done = command("table", str(file), "--folder", str(tmp_path / "tables"))
    assert done.returncode == 2
    assert "no table can be made. Found: a record without a cell" in done.stderr
    Record.begin(ENGINE, TOLD, RUN, tmp_path / "engine.json", False).save()
    done = command("table", str(tmp_path / "engine.json"), "--kernel", "infera_experts")
    assert done.returncode == 2
    assert "no table can be made of a bench of engine" in done.stderr
    assert not (tmp_path / "tables").exists()


def test_tables_are_written_where_one_says(attention: Path, tmp_path: Path) -> None:
    done = command("table", str(attention), "--folder", str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr
    names = sorted(file.name for file in (tmp_path / "tables").iterdir())
    assert names == [
        "infera_attention-nvidia-h200.json",
        "infera_decode-nvidia-h200.json",
    ]


@pytest.mark.parametrize("kind", ["attention", "experts"])
def test_without_torch_or_vllm_it_says_so(kind: str) -> None:
    done = command(kind)
    assert done.returncode == 2
    assert "this Python has no" in done.stderr
    assert "Traceback" not in done.stderr
