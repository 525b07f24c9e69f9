"""`infera-compat tune experts` where there is nothing to tune, and what layers it takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infera_compat.cli import tune, tune_attention
from infera_compat.cli.app import app
from infera_compat.errors import CompatError
from infera_compat.matrix import files


def test_a_layer_is_four_numbers() -> None:
    assert tune.sizes("128,8,2048,768") == tune.LAYERS[0]


@pytest.mark.parametrize(
    "text", ["", "128,8,2048", "1,2,3,4,5", "128,8,2048,wide", "0,0,0,0", "8,2,-1,4", "8,9,64,32"]
)
def test_what_is_no_layer(text: str) -> None:
    with pytest.raises(CompatError, match="is no layer"):
        tune.sizes(text)


@pytest.mark.parametrize("text", ["", "32,8", "32,8,wide", "32,0,128", "-32,8,128", "32,5,128"])
def test_what_is_no_layer_of_attention(text: str) -> None:
    with pytest.raises(CompatError, match="is no layer"):
        tune_attention.sizes(text)


def test_a_place_that_takes_no_file_is_told_before_anything_is_timed(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", "utf-8")
    file = tmp_path / "taken" / "gpu.json"
    with pytest.raises(CompatError, match=r"can't be written to .*gpu\.json\. Found: .*taken"):
        tune.check_writable(file)
    with pytest.raises(CompatError, match="Give another --folder"), tune.writing(file):
        files.put(file, "")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_without_torch_it_says_so() -> None:
    done = CliRunner().invoke(app, ["tune", "experts"])
    assert done.exit_code == 2
    assert "nothing to tune here" in done.output
    assert "No module named 'torch'" in done.output
