"""The fake stands for the real releases: it has the definitions that were recorded of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_vllm import RECORDED, build

import infera_shims
from infera_compat import contracts

CONTRACTS = Path(__file__).parents[2] / "matrix" / "contracts"


@pytest.mark.parametrize("line", RECORDED)
def test_its_definitions_are_those_recorded_of_the_release(tmp_path: Path, line: str) -> None:
    recorded = json.loads((CONTRACTS / f"{RECORDED[line]}.json").read_text("utf-8"))["symbols"]
    shim = next(shim for shim in infera_shims.order(None) if shim.name == line)
    root = build(tmp_path, line).root
    for need, found in zip(shim.needs, contracts.definitions(root, shim.needs), strict=True):
        known = recorded[need.symbol]
        assert found is not None, need.symbol
        assert found.kind == known["kind"]
        assert list(found.decorators) == known["decorators"]
        if need.parameters is not None and need.parameters[-1:] != (contracts.ANY,):
            assert list(found.parameters or ()) == known["parameters"]


@pytest.mark.parametrize("line", RECORDED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_it_serves_without_the_plugin(tmp_path: Path, line: str, device: str) -> None:
    fake = build(tmp_path / "site", line, device=device)
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("attention", "modular-moe", "mla", "mamba")
        answer(first=engine.step(2))
        """,
        path=fake.without_plugin(),
    )
    assert ran.answer == {"first": [30, 42]}
