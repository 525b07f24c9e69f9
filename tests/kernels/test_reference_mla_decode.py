"""The MLA decode kernel in plain torch against an expectation in float64."""

from __future__ import annotations

import pytest
import torch
from calls import (
    assert_agrees,
    assert_same,
    faked,
    guarded,
    mla_decode,
    replay,
    snapshot,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from infera_compat.kernels import online_softmax
from infera_compat.kernels.conformance import expected
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSpec
from infera_compat.kernels.mla_decode.reference import KERNEL

LENGTHS = [40, 0, 7, 1, 65, 16]


@pytest.fixture(params=[False, True], ids=["whole", "in parts"])
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With a budget so small that keys and requests are taken a few at a time."""
    if request.param:
        monkeypatch.setattr(online_softmax, "BUDGET", 1 << 15)
        monkeypatch.setattr(online_softmax, "FEWEST_KEYS", 15)
    return bool(request.param)


def check(call: MlaDecodeCall) -> None:
    assert KERNEL.supports(call.spec) is None
    before = snapshot(call, "out", "lse")
    KERNEL.run(call)
    out, lse = expected.mla_decode(call)
    assert_agrees(call.out, out, call.spec.dtype)
    assert guarded(call.out)
    if call.lse is not None:
        assert_agrees(call.lse, lse, torch.float32)
        assert guarded(call.lse)
    assert_same(call, before)


@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize(("heads", "latent", "rope"), [(1, 64, 16), (5, 80, 8), (16, 512, 64)])
def test_every_shape(
    heads: int, latent: int, rope: int, block_size: int, tokens: int, in_parts: bool
) -> None:
    shape = {"heads": heads, "latent": latent, "rope": rope, "block_size": block_size}
    check(mla_decode(LENGTHS, tokens, looser=30, **shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lse", [True, False])
def test_every_type(dtype: torch.dtype, lse: bool) -> None:
    check(mla_decode(LENGTHS, 2, dtype=dtype, lse=lse))


@pytest.mark.parametrize("lengths", [[1], [0], [0, 0, 3], [200], [16, 32, 48], []], ids=str)
@pytest.mark.parametrize("tokens", [1, 3])
def test_every_kind_of_step(lengths: list[int], tokens: int, in_parts: bool) -> None:
    check(mla_decode(lengths, tokens))


def test_padded_rows_are_zeros_and_count_for_nothing() -> None:
    call = mla_decode(LENGTHS, 2)
    KERNEL.run(call)
    assert call.lse is not None
    assert (call.out[2:4] == 0).all()
    assert (call.lse[2:4] == -torch.inf).all()


def test_nothing_is_read_on_the_host() -> None:
    call = mla_decode(LENGTHS, 2)
    with FakeTensorMode() as mode:
        KERNEL.run(faked(call, mode))


def test_what_was_recorded_is_right_for_other_lengths(in_parts: bool) -> None:
    first = mla_decode([100, 1, 1], 2, blocks=30, width=9)
    second = mla_decode([0, 70, 33], 2, blocks=30, width=9)
    replay(KERNEL, first, second)
    out, lse = expected.mla_decode(second)
    assert second.lse is not None
    assert_agrees(second.out, out, torch.float32)
    assert_agrees(second.lse, lse, torch.float32)


def test_what_it_does_not_claim() -> None:
    spec = MlaDecodeSpec(16, 512, 64, torch.bfloat16, torch.bfloat16)
    assert KERNEL.supports(spec) is None
    reason = KERNEL.supports(MlaDecodeSpec(16, 512, 64, torch.bfloat16, torch.uint8))
    assert reason is not None
    assert reason.found == "a cache of torch.uint8"
    reason = KERNEL.supports(MlaDecodeSpec(16, 512, 64, torch.float64, torch.bfloat16))
    assert reason is not None
    assert reason.found == "a query of torch.float64"
