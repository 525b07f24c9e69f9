"""infera_decode and infera_attention in Triton's interpreter against an expectation in float64.

By itself: TRITON_INTERPRET=1 pytest tests/kernels/test_infera_attention.py. Without it, a test of
test_infera_attention_compiled.py runs this file in a process of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import triton
from calls import LAYOUTS, assert_agrees, assert_same, attention, guarded, snapshot

from infera_compat.kernels import pieces
from infera_compat.kernels.attention import eligible, infera_attention, infera_decode
from infera_compat.kernels.attention.contract import AttentionCall, AttentionKernel, AttentionSizes
from infera_compat.kernels.attention.nothing import nothing_to_do
from infera_compat.kernels.attention.settings import Decoding, Prefilling
from infera_compat.kernels.conformance import expected

if not triton.knobs.runtime.interpret:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

DECODE, ATTENTION = infera_decode.KERNEL, infera_attention.KERNEL
BOTH = pytest.mark.parametrize("kernel", [DECODE, ATTENTION], ids=lambda kernel: kernel.name)
HALF = torch.float16
SCRATCH = ("out", "workspace")
RAGGED = (1, 300, 64, 17, 129)


def equipped(
    kernel: AttentionKernel, call: AttentionCall, space: torch.Tensor | None = None
) -> AttentionCall:
    """The call with the scratch that a kernel asks for, full of what must not be read."""
    sizes = AttentionSizes(len(call.query), len(call.seq_lens), call.max_seq_len)
    assert kernel.counters(call.spec, sizes) == 0
    if space is None:
        space = torch.full((kernel.workspace(call.spec, sizes),), 0xFF, dtype=torch.uint8)
    return dataclasses.replace(call, workspace=space)


def assert_right(call: AttentionCall, before: dict[str, torch.Tensor], rows: int) -> None:
    want = expected.attention(call)
    assert_agrees(call.out[:rows], want[:rows], call.spec.dtype)
    assert_same(call, before)
    assert guarded(call.out)


def check(kernel: AttentionKernel, queries: Any, lengths: Any, **about: Any) -> None:
    about = {"dtype": HALF, "ratio": 4, **about}
    call = equipped(kernel, attention(queries, lengths, **about))
    assert kernel.supports(call.spec) is None
    before = snapshot(call, *SCRATCH)
    kernel.run(call)
    assert_right(call, before, sum(queries))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, HALF])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding(kernel: AttentionKernel, layout: str, dtype: torch.dtype) -> None:
    check(kernel, (1,) * 5, RAGGED, layout=layout, dtype=dtype)


@BOTH
def test_speculative_verification(kernel: AttentionKernel) -> None:
    check(kernel, (8, 1, 3, 5), (8, 300, 64, 90))


@pytest.mark.parametrize("block_size", [16, 48, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, HALF])
def test_prompts_among_requests_that_decode(block_size: int, dtype: torch.dtype) -> None:
    check(ATTENTION, (1, 70, 1, 9, 2), (200, 70, 1, 130, 2), block_size=block_size, dtype=dtype)


@BOTH
@pytest.mark.parametrize(
    "features",
    [
        {"window": 16},
        {"window": 1},
        {"window": 130},
        {"soft_cap": 5.0},
        {"sinks": True},
        {"alibi": True},
        {"causal": False},
        {"window": 20, "soft_cap": 5.0, "sinks": True, "alibi": True},
    ],
    ids=str,
)
def test_features(kernel: AttentionKernel, features: dict[str, Any]) -> None:
    queries = (1, 2, 8) if kernel is DECODE else (1, 2, 40)
    check(kernel, queries, (150, 2, 170), **features)


@BOTH
@pytest.mark.parametrize(
    ("ratio", "kv_heads", "head_size"),
    [(7, 1, 64), (1, 3, 96), (8, 2, 128), (5, 1, 80), (2, 1, 256), (32, 1, 64)],
)
def test_heads(kernel: AttentionKernel, ratio: int, kv_heads: int, head_size: int) -> None:
    queries = (1, 8) if kernel is DECODE else (1, 21)
    check(kernel, queries, (100, 90), ratio=ratio, kv_heads=kv_heads, head_size=head_size)


@BOTH
def test_padding_is_not_touched(kernel: AttentionKernel) -> None:
    check(kernel, (1, 1, 0, 0), (40, 50, 0, 0), padding=3, looser=2)


@BOTH
def test_more_requests_than_are_looked_at_at_once(
    kernel: AttentionKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LOOKED_AT", (1, 2))
    check(kernel, (1,) * 7, (3, 0, 70, 5, 1, 9, 33), kv_heads=1)
    check(ATTENTION, (1, 9, 1, 1, 20), (3, 9, 70, 5, 33), kv_heads=1)


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("at_once", [2, 64])
@pytest.mark.parametrize("queries", infera_decode.QUERIES)
def test_requests_of_several_pieces_are_added_up(
    least: int, at_once: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest is cut into eleven of sixteen pieces, or fewer, and no piece is left unread."""
    monkeypatch.setattr(pieces, "ADDED_PIECES", at_once)
    settings = Decoding(block_n=16, programs=4, least=least)
    call = attention((1, 0, 1, 1), (260, 0, 17, 100), kv_heads=1, ratio=4, dtype=HALF)
    chosen = infera_decode.Variant(call.spec, queries, pieces.LOOKED_AT[1], settings)
    assert chosen.cut.wanted == 4 * eligible.INTERPRETED_PROCESSORS
    assert not chosen.cut.alone(4)
    assert chosen.adding["AT_ONCE"] == min(at_once, 8)
    space = torch.full((chosen.bytes + 1024,), 0xFF, dtype=torch.uint8)
    call = equipped(DECODE, call, space)
    before = snapshot(call, *SCRATCH)
    chosen.launch(call)
    assert_right(call, before, 3)
    assert bool((space[chosen.bytes :] == 0xFF).all()), "it keeps to what it asked for"
    assert int((space[: chosen.bytes] != 0xFF).sum()) > 0


@pytest.mark.parametrize("queries", infera_decode.QUERIES)
def test_as_many_requests_as_pieces_are_one_piece_each(queries: int) -> None:
    call = attention((1, 1, 0, 1), (260, 17, 0, 100), kv_heads=1, ratio=4, dtype=HALF)
    settings = Decoding(block_n=16, programs=1)
    chosen = infera_decode.Variant(call.spec, queries, pieces.LOOKED_AT[1], settings)
    assert chosen.cut.alone(4)
    before = snapshot(call, *SCRATCH)
    chosen.launch(call)  # without a workspace
    assert_right(call, before, 3)


@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("window", [None, 33])
def test_prompts_of_many_tiles(block_m: int, window: int | None) -> None:
    call = attention((150, 1, 61), (210, 9, 61), kv_heads=2, ratio=4, dtype=HALF, window=window)
    settings = Prefilling(block_m, 32, 4, 2)
    before = snapshot(call, "out")
    infera_attention.Variant(call.spec, pieces.LOOKED_AT[1], settings).launch(call)
    mine = torch.tensor([True] * 150 + [False] + [True] * 61)
    assert_agrees(call.out[mine], expected.attention(call)[mine], HALF)
    assert bool(call.out[~mine].isnan().all()), "who decodes is served by another launch"
    assert_same(call, before)


@BOTH
def test_a_warm_up_has_nothing_to_do(kernel: AttentionKernel) -> None:
    spec = attention((1,), (1,), dtype=HALF, sinks=True, alibi=True).spec
    sizes = AttentionSizes(64, 32, 128)
    kernel.warm_up(spec, sizes, torch.device("cpu"), None)  # type: ignore[arg-type]
    calls = list(nothing_to_do(kernel, spec, sizes, torch.device("cpu"), 3))
    assert [call.sinks.dtype for call in calls if call.sinks is not None] == [torch.float32, HALF]
    for call in calls:
        kernel.run(call)
        assert not call.out.any()
    bare = dataclasses.replace(spec, block_size=None)
    assert not list(nothing_to_do(kernel, bare, sizes, torch.device("cpu"), 3))


@BOTH
def test_a_step_without_a_token(kernel: AttentionKernel) -> None:
    call = attention((), (), dtype=HALF)
    kernel.run(call)


def test_rows_that_begin_at_odd_places_are_refused() -> None:
    call = equipped(DECODE, attention((1,), (20,), dtype=HALF))
    odd = torch.empty(1, 2, 65, dtype=HALF)[..., :64]
    with pytest.raises(ValueError, match="multiples of 8"):
        DECODE.run(dataclasses.replace(call, out=odd))


def test_scratch_is_asked_for() -> None:
    with pytest.raises(ValueError, match="workspace"):
        DECODE.run(attention((1,), (20,), kv_heads=1, dtype=HALF))


@BOTH
@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({"dtype": torch.float32}, "float32"),
        ({"kv_dtype": torch.bfloat16}, "bfloat16"),
        ({"head_size": 60}, "60 channels"),
        ({"head_size": 264}, "264 channels"),
        ({"window": 4, "causal": False}, "window"),
    ],
    ids=str,
)
def test_layers_that_are_not_taken(
    kernel: AttentionKernel, about: dict[str, Any], found: str
) -> None:
    spec = attention((1,), (1,), **{"dtype": HALF, **about}).spec
    assert found in str(kernel.supports(spec))


@BOTH
def test_old_gpus_are_not_taken(kernel: AttentionKernel) -> None:
    spec = attention((1,), (1,), dtype=HALF).spec
    old = dataclasses.replace(spec, device="cuda", capability=(7, 5))
    assert "7.5" in str(kernel.supports(old))
    assert kernel.supports(dataclasses.replace(old, capability=(8, 0))) is None
