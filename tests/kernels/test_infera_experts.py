"""infera_experts in Triton's interpreter against an expectation in float64.

By itself: TRITON_INTERPRET=1 pytest tests/kernels/test_infera_experts.py. Without it, a test of
test_infera_experts_compiled.py runs this file in a process of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from calls import POISON, assert_agrees, assert_same, experts, snapshot

from infera_compat.errors import CompatError
from infera_compat.kernels.conformance import expected
from infera_compat.kernels.experts import launches, sources
from infera_compat.kernels.experts.contract import ACTIVATIONS, ExpertsCall, ExpertsSizes
from infera_compat.kernels.experts.infera import KERNEL, interpreted
from infera_compat.kernels.experts.plans import Few, Plan, Sorted, Tile, bucket
from infera_compat.kernels.experts.scratch import Sorting, few_bytes
from infera_compat.kernels.limits import Limits

pytestmark = pytest.mark.skipif(not interpreted(), reason="needs TRITON_INTERPRET=1")

SCRATCH = ("out", "workspace13", "workspace2", "workspace", "counters")
SMALL = Tile(16, 32, 4, 2)
DTYPES = (torch.bfloat16, torch.float16)


def equipped(call: ExpertsCall, plan: Plan | None = None) -> ExpertsCall:
    """The call with the scratch that a plan needs, full of what must not be read."""
    tokens = call.hidden_states.shape[0]
    sizes = ExpertsSizes(max(1, tokens))
    count, counters = KERNEL.workspace(call.spec, sizes), KERNEL.counters(call.spec, sizes)
    if isinstance(plan, Few):
        count = few_bytes(call.spec, tokens)
        counters = -(-call.spec.hidden // plan.down.columns)
    elif plan is not None:
        sorting = Sorting.of(call.spec, bucket(tokens), tokens, plan.rows)
        count, counters = sorting.bytes(call.spec.experts), 0
    return dataclasses.replace(
        call,
        workspace=torch.full((count,), 0xFF, dtype=torch.uint8),
        counters=torch.zeros(counters, dtype=torch.int32) if counters else None,
    )


def check(call: ExpertsCall, plan: Plan | None = None) -> None:
    """plan: another one than the kernel would choose."""
    assert KERNEL.supports(call.spec) is None
    call = equipped(call, plan)
    before = snapshot(call, *SCRATCH)
    if plan is None:
        KERNEL.run(call)
    else:
        launches.launch(call, plan, bucket(call.hidden_states.shape[0]))
    assert_agrees(call.out, expected.experts(call), call.spec.dtype)
    assert_same(call, before)
    assert call.counters is None or not call.counters.any()


def few(merge: bool = True, tile: Tile = SMALL) -> Few:
    return Few(tile, tile, merge)


def by_expert(rows: int = 16, tile: Tile = SMALL) -> Sorted:
    return Sorted(rows, tile, tile)


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights by descriptors, as on GPUs that have them."""
    limits = Limits(shared=1 << 20, stages=2, tma=True, early=False)
    monkeypatch.setattr(Limits, "of", classmethod(lambda cls, spec: limits))


@pytest.mark.parametrize("tokens", [1, 5, 17, 33, 70])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (5, 3), (17, 6)])
def test_every_shape(count: int, top_k: int, world: int, tokens: int) -> None:
    shape = {"count": count, "top_k": top_k, "world": world, "hidden": 40, "intermediate": 24}
    check(experts(tokens, dtype=torch.float16, **shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("plan", [few(), by_expert()], ids=["few", "sorted"])
def test_every_activation(dtype: torch.dtype, activation: str, plan: Plan) -> None:
    check(experts(9, dtype=dtype, activation=activation), plan)


@pytest.mark.parametrize("plan", [few(), few(False), by_expert()], ids=["merged", "few", "sorted"])
@pytest.mark.parametrize("weights_on_input", [False, True])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_every_flag(plan: Plan, weights_on_input: bool, ids: torch.dtype, shared: bool) -> None:
    flags = {"weights_on_input": weights_on_input, "shared": shared, "ids": ids}
    check(experts(9, world=2, dtype=torch.bfloat16, **flags), plan)


@pytest.mark.parametrize("tile", [Tile(8, 16, 4, 2), Tile(32, 64, 4, 2), Tile(64, 16, 4, 2)])
@pytest.mark.parametrize("make", [few, by_expert])
def test_tiles_that_divide_nothing(make: Callable[..., Plan], tile: Tile) -> None:
    check(experts(11, dtype=torch.float16, hidden=72, intermediate=40), make(tile=tile))


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_rows_and_groups(rows: int, group: int) -> None:
    """With several row tiles of an expert, that are no multiple of a group."""
    tile = dataclasses.replace(SMALL, group=group)
    check(experts(150, count=3, dtype=torch.float16), by_expert(rows, tile))


@pytest.mark.parametrize("per_sm", [1, 2, 7])
def test_programs_that_take_tile_after_tile(per_sm: int) -> None:
    tile = dataclasses.replace(SMALL, per_sm=per_sm)
    check(experts(60, count=5, dtype=torch.float16), by_expert(16, tile))


ACROSS = [
    (40, 72, Tile(16, 64, 4, 2, across=2)),
    (192, 80, Tile(32, 64, 4, 2, across=3)),
    (192, 56, Tile(16, 256, 4, 2, across=1)),
    (256, 96, Tile(64, 256, 4, 2, 1, across=4)),
    (256, 80, Tile(16, 128, 4, 2, per_sm=2, across=2)),
]
"""Intermediate and hidden sizes, and tiles some of which divide neither."""


@pytest.mark.parametrize(("intermediate", "hidden", "tile"), ACROSS)
@pytest.mark.parametrize("weights_on_input", [False, True])
def test_rows_that_go_across_columns(
    intermediate: int, hidden: int, tile: Tile, weights_on_input: bool
) -> None:
    """One expert of two ranks has no rows at all."""
    shape = {"hidden": hidden, "intermediate": intermediate, "count": 2, "world": 2}
    call = experts(20, dtype=torch.float16, weights_on_input=weights_on_input, **shape)
    assert call.expert_map is not None
    call.topk_ids[call.topk_ids == call.expert_map.argmax()] = -1
    check(call, Sorted(16, SMALL, tile))


@pytest.mark.parametrize(("intermediate", "hidden", "tile"), ACROSS)
@pytest.mark.usefixtures("descriptors")
def test_rows_that_go_across_columns_by_descriptors(
    intermediate: int, hidden: int, tile: Tile
) -> None:
    shape = {"hidden": hidden, "intermediate": intermediate, "count": 2}
    check(experts(20, dtype=torch.bfloat16, **shape), Sorted(32, SMALL, tile))


def test_rows_that_go_across_columns_of_weights_that_nobody_chose() -> None:
    call = experts(9, count=8, hidden=72, intermediate=40, missing=0.0, dtype=torch.float16)
    call.topk_ids[:] = torch.tensor([2, 5])
    for weights in (call.w13, call.w2):
        weights[[0, 1, 3, 4, 6, 7]] = POISON
    check(call, Sorted(16, SMALL, ACROSS[0][2]))


@pytest.mark.parametrize("tokens", [7, 150])
@pytest.mark.parametrize("sizes", [(48, 24), (96, 40)])
@pytest.mark.usefixtures("descriptors")
def test_weights_by_descriptors(tokens: int, sizes: tuple[int, int]) -> None:
    shape = {"hidden": sizes[0], "intermediate": sizes[1], "world": 2}
    check(experts(tokens, dtype=torch.float16, **shape), by_expert())


def test_more_pairs_than_a_block() -> None:
    """A histogram of each block, and programs that add them up."""
    shape = {"count": 3, "hidden": 16, "intermediate": 8}
    check(experts(600, dtype=torch.float16, world=2, **shape), by_expert(64))


def test_more_blocks_than_histograms_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "COUNTED", 8)
    shape = {"count": 3, "hidden": 16, "intermediate": 8}
    check(experts(1100, dtype=torch.float16, **shape), by_expert(128))


@pytest.mark.parametrize("plan", [few(), few(False), by_expert()], ids=["merged", "few", "sorted"])
def test_a_token_without_a_local_expert_gets_zeros(plan: Plan) -> None:
    call = equipped(experts(20, missing=1.0, dtype=torch.float16), plan)
    launches.launch(call, plan, bucket(20))
    assert (call.out == 0).all()


@pytest.mark.parametrize("plan", [few(), by_expert()], ids=["few", "sorted"])
def test_no_expert_is_not_the_last_one_of_the_map(plan: Plan) -> None:
    call = equipped(experts(20, world=2, missing=1.0, dtype=torch.float16), plan)
    assert call.expert_map is not None
    call.expert_map[-1] = 0
    launches.launch(call, plan, bucket(20))
    assert (call.out == 0).all()


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("plan", [few(), few(False), by_expert()], ids=["merged", "few", "sorted"])
def test_one_expert_chosen_twice_counts_twice(plan: Plan, tokens: int) -> None:
    call = experts(tokens, count=16, missing=0.0, dtype=torch.float16)
    call.topk_ids[:] = 1
    check(call, plan)


@pytest.mark.parametrize("plan", [few(), by_expert(), by_expert(64)], ids=["few", "16", "64"])
def test_all_tokens_choose_one_expert(plan: Plan) -> None:
    call = experts(50, count=8, missing=0.0, dtype=torch.float16)
    call.topk_ids[:, 0] = 3
    call.topk_ids[:, 1] = -1
    check(call, plan)


@pytest.mark.parametrize("plan", [few(), by_expert()], ids=["few", "sorted"])
def test_weights_of_experts_that_nobody_chose_are_not_used(plan: Plan) -> None:
    call = experts(9, count=8, missing=0.0, dtype=torch.float16)
    call.topk_ids[:] = torch.tensor([2, 5])
    for weights in (call.w13, call.w2):
        weights[[0, 1, 3, 4, 6, 7]] = POISON
    check(call, plan)


@pytest.mark.parametrize("plan", [few(), by_expert()], ids=["few", "sorted"])
def test_padding_reaches_nobody(plan: Plan) -> None:
    call = experts(12, missing=0.0, dtype=torch.float16)
    call.topk_ids[7:] = -1
    call.hidden_states[7:] = POISON
    check(call, plan)


@pytest.mark.parametrize("plan", [few(), few(False), by_expert()], ids=["merged", "few", "sorted"])
def test_rows_with_gaps(plan: Plan) -> None:
    """Hidden states, weights, ids and out of something wider."""
    call = experts(12, dtype=torch.float16)

    def wider(tensor: torch.Tensor, by: int = 16) -> torch.Tensor:
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + by), 7, dtype=tensor.dtype)
        wide[..., : tensor.shape[-1]] = tensor
        return wide[..., : tensor.shape[-1]]

    names = ("hidden_states", "w13", "w2", "topk_weights", "topk_ids", "out")
    values: dict[str, Any] = {name: wider(getattr(call, name)) for name in names}
    call = dataclasses.replace(call, **values)
    check(call, plan)
    for name in names:
        wide = getattr(call, name)._base
        assert (wide[..., -16:] == 7).all(), name


def test_strides_that_it_can_not_read_are_told() -> None:
    call = equipped(experts(3, dtype=torch.float16))
    odd = torch.zeros(3, 49, dtype=torch.float16)[:, :48]
    with pytest.raises(CompatError, match=r"strides \(49, 1\)"):
        KERNEL.run(dataclasses.replace(call, hidden_states=odd))


def test_a_missing_workspace_is_told() -> None:
    call = experts(3, dtype=torch.float16)
    with pytest.raises(CompatError, match="no workspace"):
        KERNEL.run(call)


def test_no_tokens() -> None:
    check(experts(0, dtype=torch.float16))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("plan", [few(), few(False), by_expert()], ids=["merged", "few", "sorted"])
def test_an_idle_call_has_nothing_to_do(plan: Plan, mapped: bool) -> None:
    spec = experts(1, dtype=torch.float16, world=1 + mapped).spec
    call = sources.idle(spec, 4, plan, torch.device("cpu"))
    launches.launch(call, plan, 4)
    assert (call.out == 0).all()
    assert call.counters is not None
    assert not call.counters.any()


def test_results_do_not_depend_on_scratch() -> None:
    call = experts(30, world=2, shared=True, dtype=torch.float16)
    results = []
    for value in (0.0, POISON, -torch.inf):
        ready = equipped(call)
        for name in ("out", "workspace13", "workspace2"):
            getattr(ready, name).fill_(value)
        KERNEL.run(ready)
        results.append(ready.out.clone())
    assert all(torch.equal(result, results[0]) for result in results)
