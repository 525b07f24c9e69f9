"""Attention a part of the keys at a time, as the reference kernels do it: plain torch, float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch

BUDGET = 64 << 20
"""Bytes of the largest tensor that a step of a reference kernel makes; it holds four such ones."""
FEWEST_KEYS = 256
"""Keys of a step where the budget is too small for more."""


def parts(tiles: int, keys: int, key_bytes: int) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
    """Split tiles and keys so that key_bytes (of one key of one tile) stay within BUDGET.

    Yields a slice of the tiles, and the ranges (begin, end) of keys to go through for it.
    """
    affordable = BUDGET // (max(1, tiles) * key_bytes)
    step = max(1, min(keys, max(FEWEST_KEYS, affordable)))
    at_once = max(1, BUDGET // (step * key_bytes))
    ranges = [(begin, min(begin + step, keys)) for begin in range(0, keys, step)]
    for begin in range(0, tiles, at_once):
        yield slice(begin, min(begin + at_once, tiles)), ranges


def slots(
    tables: torch.Tensor, positions: torch.Tensor, block_size: int, blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where tokens lie in a paged cache: (block, slot), [tiles, keys] and [keys], int64.

    tables: [tiles, max blocks], each tile's row of the block table. positions: [keys], int64,
    below max blocks * block_size. Entries that name no block are clamped: what they stand for is
    masked anyway, and nothing may be read out of range.
    """
    block = tables[:, positions // block_size].to(torch.int64).clamp(0, blocks - 1)
    return block, positions % block_size


class OnlineSoftmax:
    """softmax(scores) @ values, fed with a part of the keys at a time.

    The axes before the last are called rows here; all of it is float32.
    """

    def __init__(self, like: torch.Tensor, channels: int, sinks: torch.Tensor | None = None):
        """Begin with no key seen, or with `sinks` in the denominators.

        like: [..., any], for the rows' shape and device. channels: of a value.
        sinks: [...], broadcasting over the rows: a logit that has no value.
        """
        shape = like.shape[:-1]
        self._most = like.new_full(shape, -torch.inf)
        self._sum = like.new_zeros(shape)
        self._values = like.new_zeros((*shape, channels))
        if sinks is not None:
            self._most = self._most.maximum(sinks)
            self._sum = self._sum + 1.0

    def add(self, scores: torch.Tensor, visible: torch.Tensor, values: torch.Tensor) -> None:
        """See some keys more.

        scores: [..., keys]; visible: the same, bool, or broadcasting; values: [..., keys, channels]
        without a NaN where nobody looks: zero times NaN is NaN.
        """
        scores = torch.where(visible, scores, -torch.inf)
        most = torch.maximum(self._most, scores.amax(-1))
        # Where no key was visible yet the maximum is -inf, and -inf - -inf would be NaN.
        base = torch.where(most == -torch.inf, 0.0, most)
        weights = torch.exp(scores - base[..., None])
        kept = torch.exp(self._most - base)
        self._most = most
        self._sum = self._sum * kept + weights.sum(-1)
        self._values = self._values * kept[..., None] + torch.matmul(weights, values)

    def result(self) -> torch.Tensor:
        """The weighted mean of the values, [..., channels]; zeros for a row that saw no key."""
        seen = (self._sum > 0) | self._sum.isnan()
        return torch.where(seen[..., None], self._values / self._sum[..., None], 0.0)

    def logarithm(self) -> torch.Tensor:
        """The natural logarithm of the denominators, [...]; -inf for a row that saw no key."""
        return self._most + torch.log(self._sum)
