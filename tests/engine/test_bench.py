"""`infera-compat bench --rehearse`: stock's own objects and a kernel over them, without a clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infera_compat.release import Release
from infera_shims.engines import child

pytest.importorskip("triton", reason="stock's backend runs by Triton's interpreter here")
EXPERTS_FROM = 30
"""The minor release from which a CPU's experts go by the modular kernel."""


def rehearse(*arguments: str) -> str:
    program = "from infera_compat.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "bench", *arguments, "--rehearse"],
        env=child.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "×" not in done.stdout  # no ratio without a GPU
    return done.stdout


def test_attention_of_every_phase_is_stock_s() -> None:
    said = rehearse("attention", "--kernel", "reference_attention")
    for phase in ("decode B2", "decode B3 S40 ragged", "prefill B1", "mixed B2"):
        assert any(phase in line and "the same, to" in line for line in said.splitlines()), phase
    assert "Rehearsed 5 cells on a CPU, 0 did not come out" in said


def test_experts_are_stock_s(release: Release) -> None:
    if release.version is None or release.version.minor < EXPERTS_FROM:
        pytest.skip("a CPU's experts go another way here")
    said = rehearse("experts", "--kernel", "reference_experts")
    assert "Rehearsed 2 cells on a CPU, 0 did not come out" in said


def test_a_pair_of_engines_takes_turns(tmp_path: Path, release: Release) -> None:
    if release.version is None or release.version.minor < 24:
        pytest.skip("no kernel takes a CPU's attention here")
    said = rehearse("engine", "--folder", str(tmp_path))
    assert "layers bound 2" in said
    assert "Rehearsed 2 loads on a CPU" in said
