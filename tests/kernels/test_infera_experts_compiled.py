"""infera_experts compiled for GPUs that are not here: what its tiles cost, and what they use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import compiling
import pytest

pytest.importorskip("triton")

import torch
from compiling import assert_passes_interpreted, resources

from infera_compat.kernels.conformance.checks.targets import TARGETS
from infera_compat.kernels.experts import heuristics, sources, tuning
from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.experts.heuristics import across_bytes, shared_bytes
from infera_compat.kernels.experts.infera import KERNEL, interpreted
from infera_compat.kernels.experts.plans import Few, Plan, Sorted
from infera_compat.kernels.limits import Limits

pytestmark = pytest.mark.skipif(interpreted(), reason="compiles: needs TRITON_INTERPRET unset")

UNALIGNED = ("ids", "expert_map", "weights")
A_FEW = 16
"""Bytes of stack that a candidate may have: some of Triton's versions put a number or two there. A
tile that does not fit spills hundreds."""
LAYER = ExpertsSpec(128, 128, 2048, 768, 8, torch.bfloat16, capability=(9, 0))
NARROW = ExpertsSpec(256, 256, 7168, 256, 8, torch.bfloat16, capability=(9, 0))
THIRDS = ExpertsSpec(128, 128, 4096, 192, 8, torch.bfloat16, capability=(9, 0))


def test_in_the_interpreter() -> None:
    assert_passes_interpreted("test_infera_experts.py")


def compiled(source: sources.Source, target: str, **options: Any) -> Any:
    function, types, constants = source
    return compiling.compiled(function, types, constants, target, options, UNALIGNED)


def products(
    plan: Plan, bucket: int, early: bool = True, layer: ExpertsSpec = LAYER
) -> list[tuple[sources.Source, Any, int]]:
    """The two products of a plan, with their tiles and how many tiles of weights each reads."""
    found = []
    for source in sources.of_plan(layer, bucket, plan, tma=True, early=early):
        name = source[0].__name__
        if name.startswith("gate_up"):
            found.append((source, plan.gate_up, 2))
        elif name.startswith("down"):
            found.append((source, plan.down, 1))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_it_compiles_for(target: str) -> None:
    seen = set()
    for source in KERNEL.compiles_for():
        compiled(source, target)
        seen.add(source[0].__name__)
    assert seen == {"gate_up_few", "down_few", "count", "place", "gate_up", "down", "combine"}


@pytest.mark.parametrize("bucket", [1, 16, 64, 512, 16384])
def test_what_the_heuristic_chooses_spills_nothing(bucket: int, tmp_path: Path) -> None:
    limits, plan = Limits.of(LAYER), heuristics.plan(LAYER, bucket)
    rows = plan.rows if isinstance(plan, Sorted) else max(16, bucket)
    for source, tile, weights in products(plan, bucket):
        kernel = compiled(source, "sm_90", num_warps=tile.warps, num_stages=tile.stages)
        found = resources(kernel, tmp_path)
        assert found["STACK"] == found["LOCAL"] == 0, (source[0].__name__, tile, found)
        assert kernel.metadata.shared <= limits.shared
        assert kernel.metadata.shared <= shared_bytes(tile, rows, weights) + 64 * tile.stages


@pytest.mark.parametrize("rows", sorted(tuning.SORTED_TILES))
def test_candidates_spill_nothing(rows: int, tmp_path: Path) -> None:
    limits = Limits.of(LAYER)
    start = heuristics.sorted_by_expert(LAYER, rows, limits)
    count = 0
    for product in ("gate_up", "down"):
        for plan in tuning.candidates(LAYER, 16384 if rows > 16 else 64, product):
            if not isinstance(plan, Sorted) or plan.rows != start.rows:
                continue
            source, tile, _ = products(plan, 16384)[product == "down"]
            kernel = compiled(source, "sm_90", num_warps=tile.warps, num_stages=tile.stages)
            found = resources(kernel, tmp_path)
            assert found["STACK"] <= A_FEW, (product, tile, found)
            assert found["LOCAL"] == 0, (product, tile, found)
            assert kernel.metadata.shared <= limits.shared, (product, tile)
            count += 1
    assert count or rows not in tuning.rows_options(LAYER, 16384)


def options_across(layer: ExpertsSpec) -> list[Sorted]:
    """What may go across columns, each tile once for a number of rows."""
    found = {
        (plan.rows, plan.down): plan
        for bucket in (64, 512, 16384)
        for plan in tuning.candidates(layer, bucket, "down")
        if isinstance(plan, Sorted) and plan.down.across
    }
    return list(found.values())


@pytest.mark.parametrize("layer", [NARROW, THIRDS], ids=["256", "192"])
def test_what_goes_across_spills_nothing(layer: ExpertsSpec, tmp_path: Path) -> None:
    plans = options_across(layer)
    assert {plan.rows for plan in plans} >= {16, 32, 64, 128, 256}
    # Three tiles of 64 channels are compiled where they differ from one tile the most.
    for plan in plans if layer is NARROW else [it for it in plans if it.rows == 128]:
        source, tile, _ = products(plan, 16384, layer=layer)[1]
        assert source[0].__name__ == "down_across"
        kernel = compiled(source, "sm_90", num_warps=tile.warps, num_stages=tile.stages)
        found = resources(kernel, tmp_path)
        assert found["STACK"] <= A_FEW, (plan, found)
        assert found["LOCAL"] == 0, (plan, found)
        assert kernel.metadata.shared <= across_bytes(tile, plan.rows, layer.intermediate), plan
        text = kernel.asm["ptx"]
        assert ("wgmma.mma_async" in text) == (plan.rows >= 64), plan
        assert "cp.async.bulk.tensor" in text
        assert "st.global.v4" in text


def test_the_weights_of_the_next_columns_come_while_these_are_multiplied() -> None:
    """Triton made its pipeline of the loop over columns: more than one tile of them is held."""
    plan = heuristics.plan(NARROW, 16384)
    assert isinstance(plan, Sorted)
    source, tile, _ = products(plan, 16384, layer=NARROW)[1]
    made = compiled(source, "sm_90", num_warps=tile.warps, num_stages=tile.stages).asm["ttgir"]
    held = f"memdesc<{tile.stages}x{tile.columns}x{tile.depth}xbf16"
    assert held in made or f"memdesc<{tile.stages}x1x{tile.columns}x{tile.depth}xbf16" in made


def test_on_hopper_it_is_tma_wgmma_and_overlapping_launches() -> None:
    plan = heuristics.plan(LAYER, 16384)
    for source, tile, _ in products(plan, 16384):
        text = compiled(source, "sm_90", num_warps=tile.warps, num_stages=tile.stages).asm["ptx"]
        assert "wgmma.mma_async" in text
        assert "cp.async.bulk.tensor" in text
        assert "griddepcontrol.wait" in text
        # A product of the next step is begun before this one's has ended.
        waits = [int(left) for left in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", text)]
        assert max(waits) > 0


def test_weights_are_asked_for_while_the_launch_before_runs() -> None:
    plan = heuristics.plan(LAYER, 1)
    assert isinstance(plan, Few)
    assert plan.lines == 16
    source, _, _ = products(plan, 1)[1]
    text = compiled(source, "sm_90").asm["ptx"]
    assert 0 < text.index("prefetch.global.L2") < text.index("griddepcontrol.wait")


def test_launches_that_do_not_overlap_say_nothing_of_it() -> None:
    for bucket in (1, 16384):
        for source in sources.of_plan(LAYER, bucket, heuristics.plan(LAYER, bucket)):
            assert "griddepcontrol" not in compiled(source, "sm_90").asm["ptx"]


def test_a_plan_without_a_merge_sums_in_a_launch_of_its_own() -> None:
    plan = heuristics.plan(LAYER, 1)
    assert isinstance(plan, Few)
    for merge in (True, False):
        its = sources.of_plan(LAYER, 1, Few(plan.gate_up, plan.down, merge))
        names = [source[0].__name__ for source in its]
        assert names == ["gate_up_few", "down_few"] + ["combine"] * (not merge)
