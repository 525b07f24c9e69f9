"""The experts kernel in plain torch against an expectation in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from calls import POISON, assert_agrees, assert_same, experts, faked, replay, snapshot
from torch._subclasses.fake_tensor import FakeTensorMode

from infera_compat.kernels import tiles
from infera_compat.kernels.conformance import expected
from infera_compat.kernels.experts import reference
from infera_compat.kernels.experts.contract import ACTIVATIONS, ExpertsCall, ExpertsSpec
from infera_compat.kernels.experts.reference import KERNEL

SCRATCH = ("out", "workspace13", "workspace2")


@pytest.fixture(params=[False, True], ids=["whole", "in parts"])
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With a budget so small that tokens and tiles are taken a few at a time."""
    if request.param:
        monkeypatch.setattr(reference, "BUDGET", 1 << 13)
        monkeypatch.setattr(tiles, "MOST_ROWS", 4)
    return bool(request.param)


def check(call: ExpertsCall) -> None:
    assert KERNEL.supports(call.spec) is None
    before = snapshot(call, *SCRATCH)
    KERNEL.run(call)
    assert_agrees(call.out, expected.experts(call), call.spec.dtype)
    assert_same(call, before)


@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 64, 150])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(("count", "top_k"), [(1, 1), (4, 2), (16, 6)])
def test_every_shape(count: int, top_k: int, world: int, tokens: int, in_parts: bool) -> None:
    check(experts(tokens, count=count, top_k=top_k, world=world, hidden=40, intermediate=56))
    check(experts(tokens, count=count, top_k=top_k, world=world, hidden=72, intermediate=24))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("weights_on_input", [False, True])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_every_flag(
    dtype: torch.dtype, activation: str, weights_on_input: bool, ids: torch.dtype, shared: bool
) -> None:
    flags = {"activation": activation, "weights_on_input": weights_on_input, "shared": shared}
    check(experts(9, world=2, dtype=dtype, ids=ids, **flags))


def test_a_token_without_a_local_expert_gets_zeros() -> None:
    call = experts(20, missing=1.0)
    KERNEL.run(call)
    assert (call.out == 0).all()


def test_no_expert_is_not_the_last_one_of_the_map() -> None:
    call = experts(20, world=2, missing=1.0)
    assert call.expert_map is not None
    call.expert_map[-1] = 0
    KERNEL.run(call)
    assert (call.out == 0).all()


def test_one_expert_chosen_twice_counts_twice() -> None:
    call = experts(5, missing=0.0)
    call.topk_ids[:] = 1
    check(call)


def test_all_tokens_choose_one_expert() -> None:
    call = experts(100, count=8, missing=0.0)
    call.topk_ids[:, 0] = 3
    call.topk_ids[:, 1] = -1
    check(call)


def test_poisoned_outputs_and_scratch() -> None:
    """What out and the workspaces hold is nobody's business, whichever number it is."""
    call = experts(30, world=2, shared=True)
    results = []
    for value in (0.0, 1e30, POISON, -torch.inf):
        for name in SCRATCH:
            getattr(call, name).fill_(value)
        KERNEL.run(call)
        results.append(call.out.clone())
    assert all(torch.equal(result, results[0]) for result in results)
    assert_agrees(results[0], expected.experts(call), torch.float32)


def test_nothing_is_read_on_the_host() -> None:
    call = experts(30, world=2)
    with FakeTensorMode() as mode:
        KERNEL.run(faked(call, mode))


def test_what_was_recorded_is_right_for_other_ids(in_parts: bool) -> None:
    first, second = experts(40, world=2, missing=1.0), experts(40, world=2)
    replay(KERNEL, first, second)
    assert_agrees(second.out, expected.experts(second), torch.float32)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dtype": torch.float8_e4m3fn}, "weights of torch.float8_e4m3fn"),
        ({"activation": "relu2"}, "activation relu2"),
    ],
)
def test_what_it_does_not_claim(changes: dict[str, object], found: str) -> None:
    spec = ExpertsSpec(8, 8, 64, 32, 2, torch.bfloat16)
    assert KERNEL.supports(spec) is None
    reason = KERNEL.supports(dataclasses.replace(spec, **changes))
    assert reason is not None
    assert reason.found == found
