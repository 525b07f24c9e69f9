"""The example of a third party's kernel computes what the contract says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from infera_compat.kernels.conformance import check
from infera_compat.kernels.conformance.outcome import PASS
from infera_compat.kernels.conformance.subject import Subject

EXAMPLE = Path(__file__).parents[2] / "examples" / "infera_example_kernels"
CHECKS = ["numerics", "paged", "mixed", "canaries", "poison", "padding"]


@pytest.mark.parametrize("name", CHECKS)
def test_it_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    kernel = importlib.import_module("infera_example_kernels").KERNEL
    (one,) = check.chosen([name])
    found = check.run(one, Subject(kernel, torch.device("cpu"), seed=0))
    assert found.status == PASS, found.detail
    assert found.cases > 0
