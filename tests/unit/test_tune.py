"""`infera-compat tune experts` where there is nothing to tune, and what layers it takes."""

from __future__ import annotations

import importlib.util

import pytest
from typer.testing import CliRunner

from infera_compat.cli import tune
from infera_compat.cli.app import app
from infera_compat.errors import CompatError


def test_a_layer_is_four_numbers() -> None:
    assert tune.sizes("128,8,2048,768") == tune.LAYERS[0]


@pytest.mark.parametrize("text", ["", "128,8,2048", "1,2,3,4,5", "128,8,2048,wide"])
def test_what_is_no_layer(text: str) -> None:
    with pytest.raises(CompatError, match="is no layer"):
        tune.sizes(text)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_without_torch_it_says_so() -> None:
    done = CliRunner().invoke(app, ["tune", "experts"])
    assert done.exit_code == 2
    assert "nothing to tune here" in done.output
    assert "No module named 'torch'" in done.output
