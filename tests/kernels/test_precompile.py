"""matrix/precompile.py, where there is no GPU: kernels lie in Triton's cache afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Another process: the driver of a process stays what it was set to.
CODE = "import sys, precompile; print(precompile.compiled(*precompile.OPS[sys.argv[1]]()[0]))"


@pytest.mark.parametrize(("op", "kernel"), [("attention", "split_kv"), ("experts", "gate_up_few")])
def test_a_candidate_is_compiled_for_the_gpu_that_is_not_here(
    op: str, kernel: str, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "matrix"), *filter(None, sys.path)])
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", CODE, op]
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
    assert list(tmp_path.glob(f"*/{kernel}.cubin"))
