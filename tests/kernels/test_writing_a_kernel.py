"""The kernel of docs/writing-a-kernel.md is right as it stands there."""

from __future__ import annotations

import importlib
import re
import textwrap
from pathlib import Path

import pytest
import torch

from infera_compat.kernels.conformance import check
from infera_compat.kernels.conformance.outcome import PASS
from infera_compat.kernels.conformance.subject import Subject
from infera_compat.kernels.kernel import Kernel

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-kernel.md"


def test_it_passes_what_a_cpu_can_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    page = PAGE.read_text("utf-8")
    (code,) = re.findall(r'^    """Causal.*?^    KERNEL = \S+$', page, re.DOTALL | re.MULTILINE)
    (tmp_path / "kernel_of_the_page.py").write_text(textwrap.dedent(code), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("kernel_of_the_page").KERNEL
    assert isinstance(kernel, Kernel)
    subject = Subject(kernel, torch.device("cpu"), 0)
    for name in ("numerics", "paged", "strides", "canaries", "padding", "poison", "inputs"):
        (one,) = check.chosen([name])
        outcome = check.run(one, subject)
        assert outcome.status == PASS, outcome
    sources = list(kernel.compiles_for())
    assert sources
    for function, signature, constants in sources:
        assert list(signature) == function.arg_names
        assert constants.keys() == {name for name, of in signature.items() if of == "constexpr"}
