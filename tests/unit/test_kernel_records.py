"""Records of verify and bench: which of them speak for a kernel, and why others do not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_records import GPU, benched, put, verified

import infera_compat
import infera_shims
from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.kernels import records
from infera_compat.kernels.records import Records
from infera_compat.matrix import releases

ROOT = Path(__file__).parents[2]
DIGEST, OTHER = "0123456789abcdef", "fedcba9876543210"
BASELINES = frozenset(("FLASH_ATTN", "TRITON_ATTN"))
PASS, FAIL, NOT_RUN = ({"check": "x", "status": name} for name in ("pass", "fail", "not run"))


def of(folder: Path, op: str = "attention", gpu: str = GPU) -> Records:
    return Records(folder, "one", op, gpu, DIGEST, infera_shims.line_of)


def verify(folder: Path, file: str = "fake", **fields: Any) -> Path:
    return put(folder / f"verify-one-{file}.json", verified("one", DIGEST) | fields)


def bench(folder: Path, *cells: dict[str, Any], file: str = "attention-fake", **more: Any) -> Path:
    return put(folder / f"bench-{file}.json", benched("one", DIGEST, *cells, **more))


def test_a_record_in_which_something_passed_and_nothing_failed_counts(tmp_path: Path) -> None:
    verify(tmp_path)
    verify(tmp_path, "h200", gpu="NVIDIA H200", passed=False)
    assert of(tmp_path).unverified() is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpu": "NVIDIA H200"}, f"no record of verify on {GPU}"),
        ({"gpu": None}, f"no record of verify on {GPU}"),
        ({"kernel": "one-fake"}, f"no record of verify on {GPU}"),
        ({"sources": {"one": OTHER}}, f"verify on {GPU} ran other sources than those installed"),
        ({"sources": {"two": DIGEST}}, f"verify on {GPU} ran other sources than those installed"),
        ({"sources": None}, f"verify on {GPU} ran other sources than those installed"),
        ({"outcomes": [PASS, FAIL]}, f"verify on {GPU} did not hold"),
        ({"passed": False}, f"verify on {GPU} did not hold"),
        ({"passed": "false"}, f"verify on {GPU} did not hold"),
        ({"outcomes": [PASS, {"check": "x", "status": "error"}]}, f"verify on {GPU} did not hold"),
        ({"outcomes": [PASS, {"check": "x"}]}, f"verify on {GPU} did not hold"),
        ({"outcomes": [NOT_RUN]}, f"verify on {GPU} has run nothing"),
        ({"outcomes": []}, f"verify on {GPU} has run nothing"),
    ],
)
def test_one_that_does_not_count_says_why(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    verify(tmp_path, **fields)
    assert of(tmp_path).unverified() == why


def test_a_record_without_sources_does_not_count(tmp_path: Path) -> None:
    body = verified("one", DIGEST)
    del body["sources"]
    put(tmp_path / "verify-one-fake.json", body)
    assert "other sources" in str(of(tmp_path).unverified())


def test_of_two_records_of_the_same_sources_none_may_have_failed(tmp_path: Path) -> None:
    verify(tmp_path)
    verify(tmp_path, "again", outcomes=[PASS, FAIL])
    assert "did not hold" in str(of(tmp_path).unverified())
    verify(tmp_path, "again", outcomes=[PASS, FAIL], sources={"one": OTHER})
    assert of(tmp_path).unverified() is None


def test_the_gpus_name_is_compared_as_a_files(tmp_path: Path) -> None:
    verify(tmp_path)
    assert of(tmp_path, gpu="nvidia fake").unverified() is None


def test_where_there_is_no_folder_there_is_no_record(tmp_path: Path) -> None:
    assert "no record of verify" in str(of(tmp_path / "none").unverified())
    assert "no record of bench" in str(of(tmp_path / "none").benched("main", BASELINES))


def test_bench_counts_for_the_stock_code_that_it_ran_beside(tmp_path: Path) -> None:
    bench(tmp_path, {"baseline": "FLASH_ATTN"}, {"baseline": "FLASHINFER"})
    assert of(tmp_path).benched("main", BASELINES) == {"FLASH_ATTN"}
    bench(tmp_path, {"baseline": "TRITON_ATTN"}, file="attention-fake-again")
    assert of(tmp_path).benched("main", BASELINES) == BASELINES


def test_cells_that_name_no_stock_code_count_for_all(tmp_path: Path) -> None:
    bench(tmp_path, {"M": 8})
    assert of(tmp_path).benched("main", frozenset(("TritonExperts",))) == {"TritonExperts"}


def test_the_kernel_of_all_cells_may_stand_beside_them(tmp_path: Path) -> None:
    body = benched("one", DIGEST)
    del body["cells"][0]["kernel"]
    put(tmp_path / "bench-attention-fake.json", body)
    assert "no record of bench" in str(of(tmp_path).benched("main", BASELINES))
    put(tmp_path / "bench-attention-fake.json", body | {"kernel": "one"})
    assert of(tmp_path).benched("main", BASELINES) == {"FLASH_ATTN"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpu": "NVIDIA H200"}, "no record of bench"),
        ({"release": "0.29.0"}, "no record of bench"),
        ({"sources": {"one": OTHER}}, "bench ran other sources than those installed"),
        ({"sources": None}, "bench ran other sources than those installed"),
        ({"cells": []}, "no record of bench"),
    ],
)
def test_a_bench_that_does_not_count_says_why(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    bench(tmp_path, **fields)
    assert of(tmp_path).benched("main", BASELINES) == f"{why} on {GPU} with vLLM's line main"


@pytest.mark.parametrize(
    "cell",
    [
        {"kernel": "two"},
        {"stock_us": None},
        {"stock_us": 0},
        {"stock_us": True},
        {"stock_us": float("inf")},
        {"ours_us": float("nan")},
        {"ours_us": 10**400},
        {"ours_us": "1"},
        {"baseline": "FLASHINFER"},
    ],
)
def test_a_cell_that_was_not_measured_does_not_count(tmp_path: Path, cell: dict[str, Any]) -> None:
    bench(tmp_path, {"baseline": "FLASH_ATTN"} | cell)
    assert "no record of bench" in str(of(tmp_path).benched("main", BASELINES))


def test_every_release_belongs_to_the_line_of_its_own_shim() -> None:
    for line in releases.read(ROOT / "matrix" / "releases.toml"):
        assert infera_shims.line_of(line.release) == line.shim
    assert infera_shims.line_of("0.34.0") == "main"


@pytest.mark.parametrize(
    ("op", "of_another"),
    [
        ("attention", "experts"),
        ("attention", "engine"),
        ("mla_decode", "experts"),
        ("experts", "attention"),
        ("experts", "mla_decode"),
        ("experts", "engine"),
    ],
)
def test_what_was_recorded_of_another_op_is_not_read(
    tmp_path: Path, op: str, of_another: str
) -> None:
    bench(tmp_path, {"baseline": "FLASH_ATTN"}, file="of-it")
    put(tmp_path / f"bench-{of_another}-fake.json", "{")
    assert of(tmp_path, op).benched("main", BASELINES) == {"FLASH_ATTN"}


@pytest.mark.parametrize("kind", ["verify", "bench"])
def test_a_pipe_or_a_folder_in_a_records_place_is_told_and_not_waited_for(
    tmp_path: Path, kind: str
) -> None:
    os.mkfifo(tmp_path / f"{kind}-one-fake.json")
    with pytest.raises(CompatError, match="no regular file"):
        READ[kind](of(tmp_path))
    (tmp_path / f"{kind}-one-fake.json").unlink()
    (tmp_path / f"{kind}-one-fake.json").mkdir()
    with pytest.raises(CompatError, match="no regular file"):
        READ[kind](of(tmp_path))


READ: dict[str, Callable[[Records], object]] = {
    "verify": lambda told: told.unverified(),
    "bench": lambda told: told.benched("main", BASELINES),
}


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        *((kind, "{", "JSONDecodeError") for kind in READ),
        *((kind, "[" * 100_000, "RecursionError") for kind in READ),
        *((kind, "[]", "no object") for kind in READ),
        ("verify", "{}", "no kernel, gpu, outcomes, passed"),
        ("bench", "{}", "no gpu, release, cells"),
        ("bench", '{"gpu": 1, "release": "0.32.0", "cells": {}}', "cells is no list"),
        ("verify", '{"kernel": 1, "gpu": 1, "outcomes": [7], "passed": 1}', "outcomes is no list"),
    ],
)
def test_a_file_that_is_no_record_is_told(tmp_path: Path, kind: str, text: str, words: str) -> None:
    file = put(tmp_path / f"{kind}-one-fake.json", text)
    with pytest.raises(CompatError, match=re.escape(f"{file} is no record")) as caught:
        READ[kind](of(tmp_path))
    assert all(part in str(caught.value) for part in (words, OFF_SWITCH))


@pytest.mark.parametrize("where", ["matrix/results", "infera_compat/recorded/results"])
def test_ours_lie_in_the_checkout_or_in_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / where).mkdir(parents=True)
    package = tmp_path / "infera_compat" / "__init__.py"
    monkeypatch.setattr(infera_compat, "__file__", str(package))
    found = records.folder_of("infera_compat.kernels.attention.reference", ours=True)
    assert found == tmp_path / where


def test_others_lie_beside_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text("", "utf-8")
    assert records.folder_of("theirs", ours=False) == tmp_path / "records"


def test_what_is_recorded_here_can_be_read() -> None:
    """A damaged record in matrix/results would cost every kernel of ours its choice."""
    folder = ROOT / "matrix" / "results"
    for file in folder.glob("verify-*.json"):
        assert records._load(file, records.VERIFY)["kernel"] in file.name
    for file in folder.glob("bench-*.json"):
        infera_shims.line_of(records._load(file, records.BENCH)["release"])
