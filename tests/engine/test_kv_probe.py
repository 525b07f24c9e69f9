"""The probe notices: each way in which a cache can be other than a regime says is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infera_compat.errors import Refused
from infera_shims.seams.kv_views import probe, regimes, views
from infera_shims.seams.kv_views.probe import UpdateFailed
from infera_shims.seams.kv_views.regimes import Regime
from infera_shims.seams.kv_views.tensors import Sizes

SIZES = Sizes(blocks=7, block_size=16, kv_heads=3, head_size=40)
Write = Callable[[Any, Any, Any, Any], None]


def cache_in(regime: Regime, dtype: Any = torch.bfloat16) -> Any:
    """A cache in a regime, its blocks apart, so that there are gaps to look at."""
    lengths = {"2": 2, "B": 7, "N": 16, "H": 3, "D": 40, "2D": 80}
    shape = [lengths[axis] for axis in regime.seen]
    shape[0] *= 2
    return torch.zeros(shape, dtype=dtype)[::2]


def writes(regime: Regime) -> Write:
    """An update that writes as a regime says."""

    def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
        found = views.read(cache, regime, 3, 40)
        found.key[slots // 16, slots % 16] = key
        found.value[slots // 16, slots % 16] = value

    return write


PLAIN = [regimes.KV_FIRST, regimes.KV_SECOND, regimes.KV_LAST]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("regime", PLAIN, ids=lambda regime: regime.name)
def test_a_right_update_is_recognised(regime: Regime, dtype: Any) -> None:
    found = probe.probe("FLASH_ATTN", cache_in(regime, dtype), SIZES, writes(regime))
    assert found is regime


def swapped(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, value, key, slots)


def next_slot(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key, value, (slots + 1) % (7 * 16))


def heads_turned(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key.roll(1, dims=1), value, slots)


def channels_turned(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key, value.roll(1, dims=2), slots)


def a_token_left_out(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key[:-1], value[:-1], slots[:-1])


def rounded(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key / 4 // 1 * 4, value, slots)


def the_gap_too(write: Write, cache: Any, key: Any, value: Any, slots: Any) -> None:
    write(cache, key, value, slots)
    all_of_it = torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage())
    all_of_it[cache.stride(0) // 2 + 1] = 1.0


@pytest.mark.parametrize("regime", PLAIN, ids=lambda regime: regime.name)
@pytest.mark.parametrize(
    "wrong",
    [
        swapped,
        next_slot,
        heads_turned,
        channels_turned,
        a_token_left_out,
        rounded,
        the_gap_too,
    ],
)
def test_a_wrong_update_is_refused(wrong: Any, regime: Regime) -> None:
    right = writes(regime)
    with pytest.raises(Refused, match=r"no one KV layout is certain.*fits none"):
        probe.probe(
            "FLASH_ATTN", cache_in(regime), SIZES, lambda *arguments: wrong(right, *arguments)
        )


def test_another_slot_that_changed_is_noticed() -> None:
    def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
        writes(regimes.KV_LAST)(cache, key, value, slots)
        cache[3, 1, 5, 0] = 1.0

    with pytest.raises(Refused, match="fits none, marks are missing"):
        probe.probe("FLASH_ATTN", cache_in(regimes.KV_LAST), SIZES, write)


def test_packed_contents_are_told_from_missing_ones() -> None:
    def write(cache: Any, key: Any, value: Any, slots: Any) -> None:
        writes(regimes.KV_LAST)(cache, key.flip(2), value, slots)

    with pytest.raises(Refused, match="fits none, every mark is in the cache"):
        probe.probe("FLASH_ATTN", cache_in(regimes.KV_LAST), SIZES, write)


def test_two_regimes_that_fit_are_refused() -> None:
    twin = Regime("the same under another name", regimes.KV_LAST.seen)
    found = probe.examine(
        (regimes.KV_LAST, twin), cache_in(regimes.KV_LAST), SIZES, writes(regimes.KV_LAST)
    )
    assert found.fits == (regimes.KV_LAST, twin)


def test_an_update_that_fails_says_so_and_how() -> None:
    def write(*_: Any) -> None:
        raise RuntimeError("no kernel image")

    with pytest.raises(UpdateFailed, match="RuntimeError: no kernel image"):
        probe.probe("FLASH_ATTN", cache_in(regimes.KV_LAST), SIZES, write)


def test_a_packed_backend_is_refused_even_where_a_regime_would_fit() -> None:
    regime = regimes.KV_LAST
    with pytest.raises(Refused, match=r"CPU_ATTN: its contents are packed.*fits \(B, H, N, 2D\)"):
        probe.probe("CPU_ATTN", cache_in(regime), SIZES, writes(regime))


def test_marks_tell_every_element_apart() -> None:
    cache = cache_in(regimes.KV_LAST)
    rounds = [probe._marks(torch, cache, SIZES, digit) for digit in range(probe._digits(SIZES))]
    numbers = [torch.cat([k.flatten(), v.flatten()]).long() for k, v in rounds]
    assert len(rounds) == 2
    codes = numbers[0] + probe.BASE * numbers[1]
    assert len(codes.unique()) == len(codes) == probe.TOKENS * 3 * 40 * 2
    assert not any((digits == probe.UNTOUCHED).any() for digits in numbers)


def test_tokens_go_all_over_the_cache() -> None:
    for sizes in (SIZES, Sizes(7, 64, 1, 576, True), Sizes(11, 48, 5, 128)):
        block, slot = probe._places(torch, sizes, "cpu")
        places = (block * sizes.block_size + slot).tolist()
        assert len(set(places)) == probe.TOKENS
        assert {0, sizes.blocks * sizes.block_size - 1} < set(places)
        assert len(set(block.tolist())) >= 5
