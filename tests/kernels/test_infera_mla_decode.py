"""infera_mla_decode in Triton's interpreter against an expectation in float64.

By itself: TRITON_INTERPRET=1 pytest tests/kernels/test_infera_mla_decode.py. Without it, a test of
test_infera_mla_decode_compiled.py runs this file in a process of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import triton
from calls import assert_agrees, assert_same, guarded, mla_decode, snapshot

from infera_compat.kernels import pieces
from infera_compat.kernels.conformance import expected
from infera_compat.kernels.mla_decode import infera
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSizes
from infera_compat.kernels.mla_decode.infera import KERNEL, Tile, Variant

if not triton.knobs.runtime.interpret:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

HALF = torch.float16
RAGGED = (1, 300, 64, 17, 129)
SCRATCH = ("out", "lse", "workspace")


def equipped(call: MlaDecodeCall, space: int | None = None) -> MlaDecodeCall:
    """The call with the scratch that the kernel asks for, full of what must not be read."""
    sizes = MlaDecodeSizes(len(call.query), len(call.seq_lens), call.max_seq_len)
    assert KERNEL.counters(call.spec, sizes) == 0
    wanted = KERNEL.workspace(call.spec, sizes) if space is None else space
    return dataclasses.replace(call, workspace=torch.full((wanted,), 0xFF, dtype=torch.uint8))


def assert_right(call: MlaDecodeCall, before: dict[str, torch.Tensor]) -> None:
    out, lse = expected.mla_decode(call)
    assert_agrees(call.out, out, call.spec.dtype)
    assert guarded(call.out)
    if call.lse is not None:
        assert_agrees(call.lse, lse, call.spec.dtype)
        assert guarded(call.lse)
    assert_same(call, before)


def check(lengths: Any, tokens: int = 1, **about: Any) -> None:
    call = equipped(mla_decode(lengths, tokens, **{"dtype": HALF, **about}))
    assert KERNEL.supports(call.spec) is None
    before = snapshot(call, *SCRATCH)
    KERNEL.run(call)
    assert_right(call, before)


@pytest.mark.parametrize("lse", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, HALF])
def test_decoding(dtype: torch.dtype, lse: bool) -> None:
    check(RAGGED, dtype=dtype, lse=lse)


@pytest.mark.parametrize("block_size", [1, 16, 48])
@pytest.mark.parametrize(
    ("heads", "latent", "rope"), [(1, 64, 16), (5, 80, 8), (16, 512, 64), (70, 256, 64)]
)
def test_shapes(heads: int, latent: int, rope: int, block_size: int) -> None:
    check((40, 0, 65), heads=heads, latent=latent, rope=rope, block_size=block_size)


@pytest.mark.parametrize("heads", [3, 16, 40])
@pytest.mark.parametrize("tokens", [2, 3, 9])
def test_several_query_tokens(tokens: int, heads: int) -> None:
    check((9, 0, 100, 33), tokens, heads=heads)
    check((10,), tokens, heads=heads)


@pytest.mark.parametrize("lse", [True, False])
@pytest.mark.parametrize("requests", [1, 2, 40])
def test_a_request_of_no_token_gets_zeros(requests: int, lse: bool) -> None:
    call = equipped(mla_decode((0,) * requests, dtype=HALF, lse=lse))
    KERNEL.run(call)
    assert not call.out.any()
    if call.lse is not None:
        assert bool((call.lse == -torch.inf).all())


def test_more_requests_than_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LOOKED_AT", (1, 2))
    infera.variant.cache_clear()
    check((3, 0, 70, 5, 1, 9, 33))


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("at_once", [2, 64])
@pytest.mark.parametrize("tokens", [1, 2])
def test_requests_of_several_pieces_are_added_up(
    least: int, at_once: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest is cut into several of about sixteen pieces, and no piece is left unread."""
    monkeypatch.setattr(pieces, "ADDED_PIECES", at_once)
    monkeypatch.setitem(infera.TILES, 16, ((0, Tile(16, 4, 2, 4, least)),))
    call = mla_decode((260, 0, 17, 100), tokens, dtype=HALF)
    chosen = Variant(call.spec, tokens > 1, pieces.LOOKED_AT[1])
    cut = chosen.cut(tokens)
    assert (cut.wanted, cut.alone(4)) == (16, False)
    assert chosen.adding["AT_ONCE"] == min(at_once, 8)
    call = equipped(call, chosen.bytes + 1024)
    before = snapshot(call, *SCRATCH)
    chosen.launch(call)
    assert_right(call, before)
    assert call.workspace is not None
    assert bool((call.workspace[chosen.bytes :] == 0xFF).all()), "it keeps to what it asked for"
    assert int((call.workspace[: chosen.bytes] != 0xFF).sum()) > 0


def test_as_many_requests_as_pieces_are_one_piece_each() -> None:
    call = mla_decode((40, 9) * 8, dtype=HALF)
    before = snapshot(call, *SCRATCH)
    KERNEL.run(call)  # without a workspace
    assert_right(call, before)


@pytest.mark.parametrize("lse", [True, False])
def test_a_warm_up_has_nothing_to_do(lse: bool) -> None:
    spec = mla_decode((1,), dtype=HALF, lse=lse).spec
    sizes = MlaDecodeSizes(64, 32, 128)
    KERNEL.warm_up(spec, sizes, torch.device("cpu"), None)  # type: ignore[arg-type]
    bare = dataclasses.replace(spec, block_size=None)
    KERNEL.warm_up(bare, sizes, torch.device("cpu"), None)  # type: ignore[arg-type]


def test_a_step_without_a_token() -> None:
    KERNEL.run(mla_decode((), dtype=HALF))


def test_rows_that_begin_at_odd_places_are_refused() -> None:
    call = equipped(mla_decode((20,), dtype=HALF))
    odd = torch.empty(1, 4, 65, dtype=HALF)[..., :64]
    with pytest.raises(ValueError, match="multiples of 8"):
        KERNEL.run(dataclasses.replace(call, out=odd))


def test_scratch_is_asked_for() -> None:
    with pytest.raises(ValueError, match="workspace"):
        KERNEL.run(mla_decode((20,), dtype=HALF))


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({"dtype": torch.float32}, "float32"),
        ({"latent": 60}, "60 latent channels"),
        ({"latent": 1024}, "1024 latent channels"),
        ({"rope": 12}, "12 further channels"),
        ({"rope": 136}, "136 further channels"),
    ],
    ids=str,
)
def test_layers_that_are_not_taken(about: dict[str, Any], found: str) -> None:
    spec = mla_decode((1,), **{"dtype": HALF, **about}).spec
    assert found in str(KERNEL.supports(spec))


def test_old_gpus_are_not_taken() -> None:
    spec = mla_decode((1,), dtype=HALF).spec
    old = dataclasses.replace(spec, device="cuda", capability=(7, 5))
    assert "7.5" in str(KERNEL.supports(old))
    assert KERNEL.supports(dataclasses.replace(old, capability=(8, 0))) is None
