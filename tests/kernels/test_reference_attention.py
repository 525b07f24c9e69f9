"""The attention kernel in plain torch against an expectation in float64."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch
from calls import (
    LAYOUTS,
    assert_agrees,
    assert_same,
    attention,
    faked,
    guarded,
    replay,
    snapshot,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from infera_compat.kernels import online_softmax, tiles
from infera_compat.kernels.attention.contract import AttentionCall, AttentionSpec
from infera_compat.kernels.attention.reference import KERNEL
from infera_compat.kernels.conformance import expected

MIXED = [1, 7, 1, 33, 2, 5]
LENGTHS = [40, 7, 1, 65, 90, 48]
TYPES = (torch.float32, torch.bfloat16, torch.float16)
FEATURES = [
    {"window": window, "soft_cap": cap, "sinks": sinks, "alibi": alibi, "causal": causal}
    for window, cap, sinks, alibi, causal in itertools.product(
        (None, 9), (None, 2.5), (False, True), (False, True), (True, False)
    )
    if causal or window is None
]


@pytest.fixture(params=[False, True], ids=["whole", "in parts"])
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With a budget so small that keys and tiles are taken a few at a time."""
    if request.param:
        monkeypatch.setattr(online_softmax, "BUDGET", 1 << 16)
        monkeypatch.setattr(online_softmax, "FEWEST_KEYS", 23)
        monkeypatch.setattr(tiles, "MOST_ROWS", 4)
    return bool(request.param)


def check(call: AttentionCall) -> None:
    assert KERNEL.supports(call.spec) is None
    before = snapshot(call, "out")
    KERNEL.run(call)
    assert_agrees(call.out, expected.attention(call), call.spec.dtype)
    assert guarded(call.out)
    assert_same(call, before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("ratio", [1, 4, 8])
def test_every_shape(ratio: int, head_size: int, block_size: int, layout: str) -> None:
    check(
        attention(
            MIXED,
            LENGTHS,
            ratio=ratio,
            kv_heads=random.choice([1, 2, 3]),
            head_size=head_size,
            block_size=block_size,
            layout=layout,
            dtype=random.choice(TYPES),
            padding=random.choice([0, 5]),
        )
    )


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_every_combination_of_features(features: dict[str, object], in_parts: bool) -> None:
    check(
        attention(
            MIXED,
            LENGTHS,
            ratio=random.choice([1, 4, 8]),
            head_size=random.choice([64, 80]),
            block_size=random.choice([1, 16, 48]),
            layout=random.choice(LAYOUTS),
            padding=3,
            looser=50,
            **features,
        )
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kv_dtype", TYPES, ids=str)
def test_every_type(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    features = random.choice(FEATURES)
    check(attention(MIXED, LENGTHS, ratio=4, dtype=dtype, kv_dtype=kv_dtype, **features))


@pytest.mark.parametrize(
    ("queries", "lengths"),
    [
        ([1] * 9, [1, 2, 3, 50, 17, 16, 15, 33, 64]),
        ([100], [100]),
        ([100], [131]),
        ([1], [1]),
        ([3] * 4, [3, 4, 50, 9]),
        ([0, 5, 0, 1, 0], [9, 9, 0, 3, 0]),
        ([0, 0], [0, 0]),
        ([], []),
    ],
    ids=str,
)
@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("window", [None, 4])
def test_every_kind_of_step(
    queries: list[int], lengths: list[int], padding: int, window: int | None, in_parts: bool
) -> None:
    check(attention(queries, lengths, ratio=2, padding=padding, window=window))


def test_a_window_of_one_token_and_one_of_more_than_all() -> None:
    check(attention(MIXED, LENGTHS, window=1))
    check(attention(MIXED, LENGTHS, window=1000))


def test_a_request_of_no_tokens_yet_with_rows_is_harmless() -> None:
    call = attention([4, 2], [10, 0])
    KERNEL.run(call)
    assert_agrees(call.out, expected.attention(call), torch.float32)
    assert call.out.isfinite().all()


def test_a_nan_that_a_request_really_has_stays_its_own() -> None:
    call = attention([3, 3], [20, 20])
    clean = dataclasses.replace(call, out=torch.empty_like(call.out))
    KERNEL.run(clean)
    block = call.block_table[1, 0]
    call.value_cache[block, 2] = torch.nan
    KERNEL.run(call)
    assert torch.equal(call.out[:3], clean.out[:3])
    assert call.out[3:].isnan().all()


def test_nothing_is_read_on_the_host() -> None:
    """A tensor without values can't be asked for one."""
    for features in FEATURES:
        call = attention(MIXED, LENGTHS, ratio=4, padding=3, **features)
        with FakeTensorMode() as mode:
            KERNEL.run(faked(call, mode))


def test_what_was_recorded_is_right_for_other_lengths(in_parts: bool) -> None:
    shape = {"ratio": 4, "window": 20, "sinks": True, "blocks": 40, "width": 9}
    first = attention([1, 1, 1, 1], [100, 1, 1, 1], padding=4, **shape)
    second = attention([0, 5, 1, 0], [80, 30, 55, 0], padding=2, **shape)
    replay(KERNEL, first, second)
    assert_agrees(second.out, expected.attention(second), torch.float32)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"kv_dtype": torch.float8_e4m3fn}, "a cache of torch.float8_e4m3fn"),
        ({"dtype": torch.float64}, "a query of torch.float64"),
        ({"heads": 5}, "5 heads over 2 KV heads"),
        ({"window": 4, "causal": False}, "a window without causality"),
    ],
)
def test_what_it_does_not_claim(changes: dict[str, object], found: str) -> None:
    spec = AttentionSpec(4, 2, 64, torch.bfloat16, torch.bfloat16)
    assert KERNEL.supports(spec) is None
    reason = KERNEL.supports(dataclasses.replace(spec, **changes))
    assert reason is not None
    assert reason.found == found
