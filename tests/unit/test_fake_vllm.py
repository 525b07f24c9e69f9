"""The fake stands for the real releases: it has the definitions that were recorded of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_vllm import RECORDED, build

import infera_shims
from infera_compat.cli import recorded
from infera_compat.contracts import ANY
from infera_compat.definitions import Source


@pytest.mark.parametrize("line", RECORDED)
def test_its_definitions_are_those_recorded_of_the_release(tmp_path: Path, line: str) -> None:
    shim = next(shim for shim in infera_shims.order(None) if shim.name == line)
    record = recorded.releases()[RECORDED[line]]
    source = Source(build(tmp_path, line).root)
    for need in shim.needs:
        found, known = source.find(need.symbol), record.symbols[need.symbol]
        assert need.met_by(found), need.symbol
        assert (found.kind, found.decorators) == (known.kind, known.decorators)
        if need.parameters is not None and ANY not in need.parameters:
            assert found.parameters == known.parameters


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


@pytest.mark.parametrize("oot", ["Theirs(Layer)", "Theirs"], ids=["a subclass", "another class"])
def test_a_layer_is_replaced_by_name_as_in_vllm(tmp_path: Path, oot: str) -> None:
    """Python runs a constructor on what __new__ made only if that is of the class that was asked
    for."""
    ran = build(tmp_path / "site").run(
        f"""
        from vllm.model_executor.custom_op import PluggableLayer

        @PluggableLayer.register("layer")
        class Layer(PluggableLayer):
            def __init__(self, size):
                self.size = size

        @Layer.register_oot
        class {oot}:
            pass

        made = Layer(7)
        answer(made=type(made).__name__, size=vars(made).get("size"), name=Theirs.name)
        """
    )
    size = 7 if oot == "Theirs(Layer)" else None
    assert ran.answer == {"made": "Theirs", "size": size, "name": "Layer"}
