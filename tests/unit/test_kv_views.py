"""Views point at the right elements, for every regime and order in memory; the rest is refused.

There is no torch here: a tensor is its shape and strides, and a view is right if it addresses
what the regime says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from infera_compat.errors import Refused
from infera_shims.seams.kv_views import regimes, views
from infera_shims.seams.kv_views.regimes import Regime

B, N, H, D = 7, 16, 3, 5


@dataclass(frozen=True)
class Strided:
    """The part of a torch tensor that views use."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int = 0
    dtype: str = "torch.bfloat16"

    def stride(self) -> tuple[int, ...]:
        return self.steps

    def permute(self, order: Sequence[int]) -> Strided:
        return Strided(
            tuple(self.shape[i] for i in order), tuple(self.steps[i] for i in order), self.offset
        )

    def select(self, axis: int, index: int) -> Strided:
        assert 0 <= index < self.shape[axis]
        rest = [i for i in range(len(self.shape)) if i != axis]
        return Strided(
            tuple(self.shape[i] for i in rest),
            tuple(self.steps[i] for i in rest),
            self.offset + index * self.steps[axis],
        )

    def narrow(self, axis: int, start: int, length: int) -> Strided:
        assert start + length <= self.shape[axis]
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        return Strided(shape, self.steps, self.offset + start * self.steps[axis])

    def view(self, sizes: Sequence[int]) -> Strided:
        """Only what is asked for: the last two axes, contiguous, into three."""
        if self.steps[-2] != self.shape[-1] * self.steps[-1]:
            raise RuntimeError("view size is not compatible")
        assert tuple(sizes[:-3]) == self.shape[:-2]
        step = self.steps[-1]
        inner = (sizes[-2] * sizes[-1] * step, sizes[-1] * step, step)
        return Strided(tuple(sizes), (*self.steps[:-2], *inner), self.offset)

    def at(self, *index: int) -> int:
        return self.offset + sum(i * s for i, s in zip(index, self.steps, strict=True))


def tensor(regime: Regime, order: Sequence[int], padding: int = 0) -> Strided:
    """A cache in a regime whose axes lie in this order in memory, outermost first."""
    sizes = {"2": 2, "B": B, "N": N, "H": H, "D": D, "2D": 2 * D, "C": D}
    shape = tuple(sizes[axis] for axis in regime.seen)
    steps = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis]
    steps[order[0]] += padding
    return Strided(shape, tuple(steps))


def element(regime: Regime, cache: Strided, part: int, b: int, n: int, h: int, d: int) -> int:
    """Where the regime's name says that an element of K (part 0) or V (part 1) lies."""
    if regime is regimes.KV_HALVES:
        inner = (part * N + n) * D + d
        return cache.at(b, h, inner // (2 * D), inner % (2 * D))
    where = {"2": part, "B": b, "N": n, "H": h, "D": d, "2D": part * D + d, "C": d}
    return cache.at(*(where[axis] for axis in regime.seen))


PLAIN = [r for r in regimes.REGIMES.values() if r not in (regimes.LATENT, regimes.KV_HALVES)]


@pytest.mark.parametrize("regime", PLAIN, ids=lambda regime: regime.name)
def test_every_order_in_memory_and_padded_pages(regime: Regime) -> None:
    for order in itertools.permutations(range(len(regime.seen))):
        for padding in (0, 3):
            check(regime, tensor(regime, order, padding))


def test_a_head_whose_keys_come_before_its_values() -> None:
    check(regimes.KV_HALVES, tensor(regimes.KV_HALVES, (0, 1, 2, 3)))
    check(regimes.KV_HALVES, tensor(regimes.KV_HALVES, (0, 1, 2, 3), padding=9))


def check(regime: Regime, cache: Strided) -> None:
    found = views.read(cache, regime, H, D)
    assert found.block_size == N
    for part, view in enumerate((found.key, found.value)):
        assert view is not None
        assert view.shape == (B, N, H, D)
        for place in ((0, 0, 0, 0), (1, 2, 0, 3), (B - 1, N - 1, H - 1, D - 1), (4, 9, 1, 2)):
            assert view.at(*place) == element(regime, cache, part, *place)


def test_a_latent_cache_is_its_own_view_and_has_no_values() -> None:
    cache = tensor(regimes.LATENT, (0, 1, 2), padding=4)
    found = views.views(cache, "TRITON_MLA", D, 1)
    assert found.key is cache
    assert found.value is None
    assert found.block_size == N


@pytest.mark.parametrize("regime", [regimes.KV_FIRST, regimes.KV_SECOND, regimes.KV_LAST])
def test_a_shape_that_only_one_regime_has_is_enough(regime: Regime) -> None:
    cache = tensor(regime, range(len(regime.seen)))
    assert views.views(cache, "FLASH_ATTN", D, H) == views.read(cache, regime, H, D)


def refusal(cache: Any, backend: str = "FLASH_ATTN", head_size: int = D, kv_heads: int = H) -> str:
    with pytest.raises(Refused) as refused:
        views.views(cache, backend, head_size, kv_heads)
    return str(refused.value)


def test_two_blocks_look_like_keys_and_values_and_are_refused() -> None:
    cache = Strided((2, 2, N, H, D), (2 * N * H * D, N * H * D, H * D, D, 1))
    assert refusal(cache).endswith("this is 2 of them")


def test_a_shape_of_no_regime_names_backend_shape_and_what_is_expected() -> None:
    said = refusal(Strided((B, H, N, D), (H * N * D, N * D, D, 1)))
    assert "FLASH_ATTN" in said
    assert f"shape ({B}, {H}, {N}, {D})" in said
    assert "(B, H, N, 2D)" in said


def test_another_head_size_or_number_of_heads_is_refused() -> None:
    cache = tensor(regimes.KV_LAST, (0, 1, 2, 3))
    assert "heads of size 4" in refusal(cache, head_size=4)
    assert "with 4 KV heads" in refusal(cache, kv_heads=4)


def test_packed_contents_are_refused_by_name() -> None:
    said = refusal(tensor(regimes.KV_HALVES, (0, 1, 2, 3)), "CPU_ATTN")
    assert "CPU_ATTN: its contents are packed" in said
    said = refusal(tensor(regimes.KV_FIRST, (0, 1, 2, 3, 4)), "ROCM_ATTN")
    assert "[B, H, D/x, N, x]" in said


@pytest.mark.parametrize("dtype", ["torch.uint8", "torch.float8_e4m3fn", "torch.int8"])
def test_quantised_caches_are_refused(dtype: str) -> None:
    cache = Strided((B, H, N, 2 * D), (2 * H * N * D, 2 * N * D, 2 * D, 1), dtype=dtype)
    assert f"quantised; found shape {cache.shape}" in refusal(cache)


def test_an_unknown_backend_is_refused() -> None:
    said = refusal(tensor(regimes.KV_LAST, (0, 1, 2, 3)), "NEW_ATTN")
    assert said.startswith("NEW_ATTN: no KV layout of this backend is known")


def test_memory_that_cannot_be_viewed_is_refused() -> None:
    cache = tensor(regimes.KV_HALVES, (0, 2, 1, 3))
    with pytest.raises(Refused, match="not compatible"):
        views.read(cache, regimes.KV_HALVES, H, D)


def test_a_real_cache_is_like_the_probed_one_but_for_blocks_and_gaps() -> None:
    small = tensor(regimes.KV_LAST, (0, 2, 1, 3))
    real = Strided((4096, H, N, 2 * D), (10 * N * H * D, 2 * D, 2 * D * H, 1))
    views.alike(real, small, regimes.KV_LAST)


def test_a_real_cache_of_one_block_is_like_the_probed_one() -> None:
    real = Strided((1, H, N, 2 * D), (2 * N * H * D, 2 * D, 2 * D * H, 1))
    views.alike(real, tensor(regimes.KV_LAST, (0, 2, 1, 3)), regimes.KV_LAST)


@pytest.mark.parametrize(
    "real",
    [
        Strided((4096, H, N, 2 * D), (N * H * D, 2 * D, 2 * D * H, 1)),
        Strided((4096, H, N, 2 * D), (2 * N * H * D, 2 * D - 1, 2 * D * H, 1)),
        Strided((4096, H, N, 2 * D), (0, 2 * D, 2 * D * H, 1)),
        Strided((4096, H, N, 2 * D), (2 * N * H * D, 2 * N * D, 2 * D, 1)),
        Strided((4096, H, 2 * N, 2 * D), (4 * N * H * D, 2 * D, 2 * D * H, 1)),
        Strided((4096, H, N, 2 * D), (2 * N * H * D, 2 * D, 2 * D * H, 1), dtype="torch.float16"),
        Strided((4096, 2, N, H, D), (2 * N * H * D, N * H * D, H * D, D, 1)),
    ],
    ids=[
        "blocks overlap",
        "heads overlap",
        "expanded",
        "heads before slots",
        "another block size",
        "another type",
        "another shape",
    ],
)
def test_another_order_size_or_type_is_not_like_it(real: Strided) -> None:
    with pytest.raises(Refused, match="not like the one that was probed"):
        views.alike(real, tensor(regimes.KV_LAST, (0, 2, 1, 3)), regimes.KV_LAST)
