"""Where K and V lie, probed on this release's real vLLM.

On a CPU stock's own kernels write CPU_ATTN's and CPU_MLA's caches. For the GPU backends stock's
Python makes the tensor and takes it apart, and stand-ins do the copying (matrix/kv_stand_ins.py):
that shows the layout, not the kernels, which matrix/kv_views_gpu.py runs on a GPU.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infera_compat.release import Release
from infera_shims.engines import child
from infera_shims.seams.kv_views.regimes import EXPECTED

SCRIPT = Path(__file__).parents[2] / "matrix" / "kv_views_gpu.py"
Rows = list[dict[str, Any]]
OF_GPUS = ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "ROCM_AITER_FA", "TRITON_MLA")


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rows]:
    """The rows of one run of the script, by its arguments; each is run once."""

    @functools.cache
    def run(*arguments: str) -> Rows:
        out = tmp_path_factory.mktemp("kv") / "rows.json"
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--out", str(out), *arguments],
            env=child.environment(INFERA_VLLM_OPS_DISABLE="1"),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rows: Rows = json.loads(out.read_text("utf-8"))["rows"]
        return rows

    return run


@pytest.fixture(scope="module")
def minor(release: Release) -> tuple[int, int]:
    assert release.version is not None
    return release.version.major, release.version.minor


def of(rows: Rows, *backends: str) -> Rows:
    found = [row for row in rows if row["backend"] in backends]
    assert found, f"no row of {backends}"
    return found


def packed(row: dict[str, Any]) -> None:
    """Refused by name, and the probe shows why: all is there, and nowhere where it should be."""
    assert row["status"] == "refused", row
    assert f"{row['backend']}: its contents are packed" in row["reason"]
    assert f"found shape {tuple(row.get('small_shape', row['shape']))}" in row["reason"]
    assert "fits none, every mark is in the cache" in row["reason"]
    assert "elements differ" in row["reason"] or "another shape" in row["reason"]


def test_cpu_attn_is_refused_and_really_is_packed(probed: Callable[..., Rows]) -> None:
    for row in of(probed("--backends", "CPU_ATTN", "CPU_MLA"), "CPU_ATTN"):
        packed(row)


def test_cpu_mla_is_read_where_stock_writes_it(
    probed: Callable[..., Rows], minor: tuple[int, int]
) -> None:
    rows = of(probed("--backends", "CPU_ATTN", "CPU_MLA"), "CPU_MLA")
    if minor < (0, 28):
        assert [row["reason"] for row in rows] == ["not in this release"]
        return
    # Its update takes dense blocks alone: with gaps between them stock itself fails.
    proved = [row for row in rows if row["status"] == "proved"]
    assert proved
    assert {row["regime"] for row in proved} == {"(B, N, C)"}
    for row in rows:
        if row not in proved:
            assert "the stock cache update failed" in row["reason"]


@pytest.mark.parametrize("backend", OF_GPUS)
def test_stocks_python_lays_gpu_caches_out_as_the_table_says(
    probed: Callable[..., Rows], backend: str
) -> None:
    rows = of(probed("--stand-ins"), backend)
    assert {row["status"] for row in rows} == {"fits"}, rows
    assert {row["regime"] for row in rows} == {rows[0]["expected"]}
    assert len({tuple(row["strides"]) for row in rows}) > 1  # more than one layout was tried


def test_rocm_attn_is_refused_and_really_is_packed(probed: Callable[..., Rows]) -> None:
    for row in of(probed("--stand-ins"), "ROCM_ATTN"):
        packed(row)


def test_nothing_is_other_than_the_table_says(probed: Callable[..., Rows]) -> None:
    for arguments in (("--backends", "CPU_ATTN", "CPU_MLA"), ("--stand-ins",)):
        assert [row for row in probed(*arguments) if not row["as_expected"]] == []


def test_a_live_worker_probes_beside_the_real_cache(probed: Callable[..., Rows]) -> None:
    (row,) = probed("--live", "llama")
    assert row["alike"] is True
    assert row["apart"] is True
    packed(row)


def test_a_live_mla_layer_is_proved(probed: Callable[..., Rows], minor: tuple[int, int]) -> None:
    if minor < (0, 29):
        # 0.28 has CPU_MLA, but its model loading imports a prefill backend that needs a GPU build.
        pytest.skip("stock starts no MLA model on a CPU before 0.29")
    rows = probed("--live", "deepseek_v2")
    assert [(row["status"], row["regime"], row["apart"]) for row in rows] == [
        ("proved", "(B, N, C)", True)
    ]


def test_what_the_table_names_upstream_is_there(release: Release, minor: tuple[int, int]) -> None:
    for e in EXPECTED:
        if not e.covers(minor):
            continue
        file, _, symbol = e.upstream.partition(":")
        owner, _, method = symbol.partition(".")
        text = (release.root / file).read_text("utf-8")
        assert f"class {owner}" in text, e
        assert f"def {method}(" in text, e
