"""infera_experts' plans: buckets, the heuristic, a GPU's file, the search among candidates."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from infera_compat.errors import CompatError
from infera_compat.kernels.experts import configs, heuristics, tuning
from infera_compat.kernels.experts.contract import ExpertsSizes, ExpertsSpec
from infera_compat.kernels.experts.heuristics import across_bytes, shared_bytes
from infera_compat.kernels.experts.infera import KERNEL, interpreted
from infera_compat.kernels.experts.plans import (
    BUCKETS,
    MOST_FEW,
    Few,
    Plan,
    Sorted,
    Tile,
    bucket,
    buckets,
    decode,
    encode,
)
from infera_compat.kernels.experts.scratch import Sorting, few_bytes, power_of_two
from infera_compat.kernels.limits import SHARED, Limits

GPU = "NVIDIA H200"
LAYERS = [(128, 8, 2048, 768), (64, 6, 2048, 1408), (8, 2, 4096, 14336), (256, 8, 7168, 256),
          (128, 8, 4096, 192), (1, 1, 64, 8)]  # fmt: skip
CAPABILITIES = [None, (7, 5), (9, 9), *SHARED]
LITTLE = 32 * 1024


def spec(sizes: tuple[int, ...] = LAYERS[0], **values: Any) -> ExpertsSpec:
    experts, top_k, hidden, intermediate = sizes
    given = {"dtype": torch.bfloat16, "capability": (9, 0), **values}
    return ExpertsSpec(experts, experts, hidden, intermediate, top_k, **given)


def held(layer: ExpertsSpec, tile: Tile, rows: int, weights: int) -> int:
    if tile.across:
        assert weights == 1
        return across_bytes(tile, rows, layer.intermediate)
    return shared_bytes(tile, rows, weights)


@pytest.mark.parametrize(
    ("tokens", "found"), [(1, 1), (2, 2), (3, 4), (16384, 16384), (16385, 16384), (10**6, 16384)]
)
def test_a_call_belongs_to_the_nearest_bucket_at_or_above_it(tokens: int, found: int) -> None:
    assert bucket(tokens) == found
    assert buckets(tokens) == BUCKETS[: BUCKETS.index(found) + 1]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_the_heuristic_fits_everywhere(
    sizes: tuple[int, ...], capability: tuple[int, int] | None
) -> None:
    layer = spec(sizes, capability=capability)
    limits = Limits.of(layer)
    for of in BUCKETS:
        plan = heuristics.plan(layer, of)
        assert isinstance(plan, Few) == (of <= heuristics.FEW)
        rows = plan.rows if isinstance(plan, Sorted) else max(16, of)
        assert rows in (16, 32, 64, 128)
        for tile, weights in ((plan.gate_up, 2), (plan.down, 1)):
            assert held(layer, tile, rows, weights) <= limits.shared
            assert 2 <= tile.stages <= limits.stages
            for size in (tile.columns, tile.depth, tile.warps):
                assert size == power_of_two(size) > 0
            assert tile.depth >= 16


def test_memory_that_is_short_costs_stages_first() -> None:
    limits = Limits(shared=LITTLE, stages=4, tma=False, early=False)
    tile = heuristics.fitting(Tile(128, 64, 4, 4), 128, 2, limits)
    assert (tile.stages, tile.depth, tile.columns) == (2, 32, 64)
    assert heuristics.fitting(Tile(16, 64, 4, 4), 16, 1, limits) == Tile(16, 64, 4, 4)


@pytest.mark.parametrize(
    ("size", "most", "found"), [(768, 128, 128), (192, 128, 64), (1408, 128, 128), (8, 64, 16)]
)
def test_columns_leave_little_of_the_last_tile_unused(size: int, most: int, found: int) -> None:
    assert heuristics.columns_for(size, most) == found


PLANS = [
    Few(Tile(16, 128, 4, 4), Tile(32, 64, 4, 3), True),
    Sorted(64, Tile(64, 64, 4, 3, 16, 2), Tile(128, 64, 8, 4)),
    Sorted(64, Tile(64, 64, 4, 3), Tile(128, 256, 8, 2, across=4)),
]


@pytest.mark.parametrize("plan", PLANS, ids=["few", "sorted", "across"])
def test_a_plan_is_the_same_after_json(plan: Plan) -> None:
    assert decode(json.loads(json.dumps(encode(plan)))) == plan


@pytest.mark.parametrize(
    "change",
    [{"kind": "other"}, {"rows": None}, {"rows": -1}, {"down": None}, {"more": 1}, {"merge": True}],
    ids=str,
)
def test_what_is_no_plan(change: dict[str, Any]) -> None:
    body = encode(Sorted(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 4)))
    with pytest.raises(ValueError, match=r"is no plan|no number"):
        decode({**body, **change})


def test_what_is_no_tile() -> None:
    body = encode(Sorted(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 4)))
    body["gate_up"]["columns"] = "64"
    with pytest.raises(ValueError, match="no number"):
        decode(body)


def test_a_plan_from_before_there_was_across() -> None:
    plan = Sorted(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 4))
    body = encode(plan)
    for product in ("gate_up", "down"):
        del body[product]["across"]
    assert decode(body) == plan


@pytest.mark.parametrize(
    "plan",
    [
        Sorted(64, Tile(64, 64, 4, 3, across=2), Tile(128, 64, 8, 4)),
        Few(Tile(16, 128, 4, 4), Tile(32, 64, 4, 3, across=2), True),
    ],
    ids=["gate_up", "few"],
)
def test_only_a_sorted_plan_s_second_product_goes_across(plan: Plan) -> None:
    with pytest.raises(ValueError, match="across columns"):
        decode(encode(plan))


@pytest.mark.parametrize(
    ("sizes", "tokens", "found"),
    [
        ((256, 8, 7168, 256), 8192, Tile(128, 256, 8, 2, across=14)),
        ((256, 8, 7168, 256), 1024, Tile(64, 256, 4, 2, across=28)),
        ((128, 8, 4096, 192), 8192, Tile(128, 64, 8, 2, across=4)),
        ((8, 2, 4096, 256), 8192, Tile(128, 256, 8, 2, across=4)),
    ],
    ids=str,
)
def test_few_channels_go_across(sizes: tuple[int, ...], tokens: int, found: Tile) -> None:
    assert heuristics.plan(spec(sizes), tokens).down == found
    # AMD's GPUs have no room for the rows and two tiles of weights.
    assert not heuristics.plan(spec(sizes, capability=None), 8192).down.across
    wider = (*sizes[:3], 264)
    assert not heuristics.plan(spec(wider), tokens).down.across


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize("of", [64, 512, 16384])
def test_both_forms_of_the_second_product_are_candidates(sizes: tuple[int, ...], of: int) -> None:
    layer = spec(sizes)
    tiles = [plan.down for plan in tuning.candidates(layer, of, "down") if isinstance(plan, Sorted)]
    forms = {tile.across > 0 for tile in tiles}
    assert not tiles or forms == ({True, False} if sizes[-1] <= heuristics.NARROW else {False})


def test_a_gpu_s_file(tmp_path: Path) -> None:
    layer, plan = spec(), Sorted(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 4))
    file = configs.path(GPU, tmp_path)
    assert file.name == "nvidia-h200.json"
    assert configs.tuned(GPU, tmp_path / "none") == {}
    configs.write(file, GPU, {"torch": "2.11.0"}, {configs.layer(layer): {512: plan}})
    assert configs.read(file, GPU) == {(128, 8, 2048, 768): {512: plan}}
    assert configs.tuned(GPU, tmp_path) == configs.read(file, GPU)


def test_what_was_tuned_comes_before_the_heuristic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, plan = spec(), Sorted(64, Tile(64, 64, 4, 3), Tile(128, 64, 8, 4))
    monkeypatch.setattr(configs, "tuned", lambda gpu: {configs.layer(layer): {512: plan}})
    assert configs.plan(layer, 512, GPU) == plan
    assert configs.plan(layer, 1024, GPU) == heuristics.plan(layer, 1024)
    other = dataclasses.replace(layer, top_k=4)
    assert configs.plan(other, 512, GPU) == heuristics.plan(other, 512)


@pytest.mark.parametrize(
    "change",
    [{"gpu": "another"}, {"layers": None}, {"layers": [{}]},
     {"layers": [{"experts": 1, "top_k": 1, "hidden": 8, "intermediate": 8, "plans": {"3": {}}}]}],
    ids=str,
)  # fmt: skip
def test_a_file_that_says_something_else(tmp_path: Path, change: dict[str, Any]) -> None:
    file = configs.path(GPU, tmp_path)
    configs.write(file, GPU, {}, {})
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(CompatError, match="has no plans"):
        configs.read(file, GPU)


def test_the_files_that_are_shipped_can_be_read() -> None:
    for file in configs.FOLDER.glob("*.json"):
        gpu = json.loads(file.read_text())["gpu"]
        assert file == configs.path(gpu)
        for sizes, plans in configs.read(file, gpu).items():
            for of, plan in plans.items():
                assert isinstance(plan, Sorted) or of <= MOST_FEW, (sizes, of)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
@pytest.mark.parametrize("of", BUCKETS)
def test_candidates_are_few_and_fit(sizes: tuple[int, ...], of: int) -> None:
    layer = spec(sizes)
    limits = Limits.of(layer)
    for product, weights in (("gate_up", 2), ("down", 1)):
        plans = tuning.candidates(layer, of, product)
        assert 0 < len(plans) <= tuning.MOST
        for plan in plans:
            rows = plan.rows if isinstance(plan, Sorted) else max(16, of)
            assert held(layer, getattr(plan, product), rows, weights) <= limits.shared


def work(plan: Plan) -> float:
    """A time that has one best plan: of known tiles, whatever the order of the search."""
    wanted = {"gate_up": Tile(64, 128, 4, 3), "down": Tile(128, 128, 4, 3)}
    time = 100.0
    for product, tile in wanted.items():
        its = vars(getattr(plan, product))
        time += sum(abs(its[name] - number) for name, number in vars(tile).items())
    return time + (plan.rows if isinstance(plan, Sorted) else 1000)


def test_the_search_finds_the_fastest() -> None:
    plan, time = tuning.search(spec(), 512, work)
    assert plan == Sorted(32, Tile(64, 128, 4, 3), Tile(128, 128, 4, 3))
    assert time == work(plan)


@pytest.mark.parametrize("merge", [True, False])
def test_the_search_asks_whether_to_merge(merge: bool) -> None:
    def timer(plan: Plan) -> float:
        return 1.0 if isinstance(plan, Few) and plan.merge == merge else 2.0

    plan, time = tuning.search(spec(), 4, timer)
    assert isinstance(plan, Few)
    assert (plan.merge, time) == (merge, 1.0)


def test_the_search_times_nothing_that_was_not_compiled() -> None:
    for of in (1, 32, 64, 512):
        timed: list[Plan] = []

        def timer(plan: Plan, timed: list[Plan] = timed) -> float:
            timed.append(plan)
            return work(plan)

        tuning.search(spec(), of, timer)
        prepared = list(tuning.everything(spec(), [of]))
        for product in ("gate_up", "down"):
            tiles = {getattr(plan, product) for _, plan in prepared}
            assert {getattr(plan, product) for plan in timed} <= tiles


def test_what_can_not_be_run_is_not_chosen() -> None:
    start = next(iter(tuning.starts(spec(), 16384)))
    plan, time = tuning.search(spec(), 16384, lambda it: math.inf)
    assert plan == start
    assert math.isinf(time)


@pytest.mark.parametrize("sizes", LAYERS, ids=str)
def test_scratch_grows_with_tokens(sizes: tuple[int, ...]) -> None:
    layer = spec(sizes, device="cpu", capability=None)
    asked = [
        (
            KERNEL.workspace(layer, ExpertsSizes(tokens)),
            KERNEL.counters(layer, ExpertsSizes(tokens)),
        )
        for tokens in (1, 2, 31, 33, 512, 16384, 20000, 70000)
    ]
    for less, more in itertools.pairwise(asked):
        assert less[0] <= more[0]
        assert less[1] <= more[1]
    for tokens, (count, _) in ((1, asked[0]), (70000, asked[-1])):
        plan = KERNEL.plan(layer, bucket(tokens))
        needed = (
            few_bytes(layer, tokens)
            if isinstance(plan, Few)
            else Sorting.of(layer, bucket(tokens), tokens, plan.rows).bytes(layer.experts)
        )
        assert count >= needed


def test_the_parts_of_the_workspace_lie_apart() -> None:
    sorting = Sorting.of(spec(), 512, 300, 64)
    space = torch.zeros(sorting.bytes(128), dtype=torch.uint8)
    for part in sorting.cut(space, 128):
        assert (part == 0).all()
        assert part.data_ptr() % 16 == 0
        part += 1
    assert sum(part.numel() for part in sorting.cut(space, 128)) == int(
        (space.view(torch.int32) == 1).sum()
    )


def test_tiles_are_never_more_than_reserved() -> None:
    """However the pairs fall to the experts."""
    for experts in (1, 2, 5):
        for pairs in range(1, 40):
            worst = max(
                sum(-(-count // 16) for count in counts) for counts in _splits(pairs, experts)
            )
            assert worst <= Sorting(pairs, 16, 128, 8).most(experts)


def _splits(total: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(total,)]
    step = max(1, total // 6)
    return [
        (first, *rest)
        for first in range(0, total + 1, step)
        for rest in _splits(total - first, parts - 1)
    ]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dtype": torch.float32}, "torch.float32"),
        ({"activation": "relu2"}, "activation relu2"),
        ({"hidden": 100}, "hidden size 100"),
        ({"intermediate": 12}, "intermediate size 12"),
        ({"capability": (7, 5)}, "compute capability 7.5"),
        ({"experts": 2000}, "2000 experts"),
    ],
)
def test_what_it_does_not_claim(changes: dict[str, Any], found: str) -> None:
    assert KERNEL.supports(spec()) is None
    reason = KERNEL.supports(dataclasses.replace(spec(), **changes))
    assert reason is not None
    assert reason.found == found


def test_a_cpu_is_for_the_interpreter_alone() -> None:
    reason = KERNEL.supports(spec(device="cpu", capability=None))
    assert (reason is None) == interpreted()
