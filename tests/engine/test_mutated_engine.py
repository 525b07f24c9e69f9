"""A real vLLM that works and in which one symbol moved: what stood on it is not bound, and says so.

Each change leaves vLLM itself whole: its engine answers as before.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import DENSE, HERE, MOE, PASSING, Run, Starts
from mutations import mutations

from infera_compat.definitions import Source
from infera_compat.release import Release
from infera_shims.engines.child import ChildError

ALIAS = "renamed, the old name is an alias"
BACKEND, LAYER, MODULAR = "get_attn_backend_cls", "layer", "modular_kernel"
MLA = "vllm.model_executor.layers.attention.mla_attention:MLAAttention"
FUSED_MOE = "vllm.model_executor.layers.fused_moe"


@dataclass(frozen=True)
class Case:
    """A change, and by which seams the ops are still bound; None: as without it."""

    symbol: str
    done: str = ALIAS
    attention: tuple[str, ...] | None = None
    moe: tuple[str, ...] | None = None


CASES = {
    "a seam": Case("vllm.platforms.interface:Platform.get_attn_backend_cls", attention=(LAYER,)),
    "the other seam": Case(f"{MLA}.__init__", attention=(BACKEND,)),
    "an op": Case(
        "vllm.v1.attention.backend:AttentionImpl.forward", "parameter layer renamed", attention=()
    ),
    "the other op": Case(f"{FUSED_MOE}.layer or method", moe=()),
    "a kind of device": Case(f"{FUSED_MOE}.experts.cpu_moe:on a CPU", moe=()),
    "the worker": Case("vllm.v1.worker.worker_base:WorkerBase.sample_tokens", attention=(), moe=()),
}


def overlay(folder: Path, root: Path, file: str, text: str) -> Path:
    """A folder for PYTHONPATH: the package at `root`, one file of which is another."""
    here, there = folder / "vllm", root
    for part in file.split("/"):
        here.mkdir(parents=True, exist_ok=True)
        for each in there.iterdir():
            # A cache of bytecode that others read must not get that of the other file.
            if each.name not in (part, "__pycache__"):
                (here / each.name).symlink_to(each)
        here, there = here / part, there / part
    here.write_text(text, "utf-8")
    return folder


def symbol_of(case: Case, shim: Any) -> str:
    """The symbol that moves: of the MoE seam that this line of releases has on a CPU."""
    if case.symbol.endswith("on a CPU"):
        return str(shim.moe_on_cpu.needs[0].symbol)
    if case.symbol.endswith("layer or method"):
        if shim.moe_on_cpu.value == MODULAR:
            return f"{FUSED_MOE}.modular_kernel:FusedMoEKernelModularImpl"
        return f"{FUSED_MOE}.unquantized_fused_moe_method:UnquantizedFusedMoEMethod.apply"
    return case.symbol


@pytest.fixture(scope="module")
def mutated(
    start: Callable[..., Run], release: Release, shim: Any, tmp_path_factory: Any
) -> Callable[[str, bool], Run]:
    """Start the changed vLLM of a case, strictly or not."""

    @functools.cache
    def path(name: str) -> str:
        case = CASES[name]
        symbol = symbol_of(case, shim)
        need = next(need for need in shim.needs if need.symbol == symbol)
        file = Source(release.root).path(need.module)
        text = dict(mutations((release.root / file).read_text("utf-8"), need))[case.done]
        site = overlay(tmp_path_factory.mktemp("overlay"), release.root, file, text)
        return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))

    def run(name: str, strict: bool) -> Run:
        environ = {**PASSING, "INFERA_STRICT": str(int(strict)), "PYTHONPATH": path(name), **HERE}
        return start("mutated", (MOE,) if strict else (DENSE, MOE), False, False, **environ)

    return functools.cache(run)


@pytest.mark.parametrize("name", CASES)
def test_what_stood_on_it_is_not_bound_the_rest_is_and_it_answers_like_stock(
    run: Starts, mutated: Callable[[str, bool], Run], shim: Any, name: str
) -> None:
    case = CASES[name]
    ours = mutated(name, False)
    for model in (DENSE, MOE):
        assert ours.requests(model) == run("off").requests(model)
    warning = next(line for line in ours.our_lines() if "is not what shim" in line)
    assert symbol_of(case, shim) in warning
    expected = {
        "attention": (BACKEND,) if case.attention is None else case.attention,
        "moe": (shim.moe_on_cpu.value,) if case.moe is None else case.moe,
    }
    bound: dict[str, set[str]] = {"attention": set(), "moe": set()}
    for event in events(ours.report):
        for layer in event["layers"]:
            if layer["bound"]:
                assert layer["calls"]["serving"] or event["event"] != "served", layer
                bound[layer["op"]].add(layer["seam"])
    assert bound == {op: set(seams) for op, seams in expected.items()}


@pytest.mark.parametrize("name", CASES)
def test_strictly_it_stops_the_start_and_names_the_symbol(
    mutated: Callable[[str, bool], Run], shim: Any, name: str
) -> None:
    with pytest.raises(ChildError) as stopped:
        mutated(name, True)
    assert "is not what shim" in str(stopped.value)
    assert symbol_of(CASES[name], shim) in str(stopped.value)


def events(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text("utf-8").splitlines()]
