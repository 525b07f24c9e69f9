"""`infera-compat verify` where it can not begin: in a Python that has no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NO_TORCH = """
import sys
sys.modules["torch"] = None  # importing it raises ModuleNotFoundError then
from infera_compat.cli import main
sys.argv = ["infera-compat", *sys.argv[1:]]
main()
"""


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", NO_TORCH, "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_without_torch_it_says_so() -> None:
    done = verify("reference_attention")
    assert done.returncode == 2
    assert "this Python has no torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_it_says_so_to_a_program() -> None:
    done = verify("reference_attention", "--json")
    assert done.returncode == 2
    assert "torch" in json.loads(done.stdout)["error"]["expected"]


@pytest.mark.parametrize("word", ["--device", "--only", "--seed", "--out", "--json"])
def test_its_help_names_each_option(word: str) -> None:
    assert word in verify("--help").stdout
