"""What a call keeps in its workspace, besides stock's two."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infera_compat.kernels.experts.align import FIELDS
from infera_compat.kernels.experts.contract import ExpertsSpec

ALIGNED = 64
"""Numbers of four bytes to a multiple of which each part is rounded up: 256 bytes."""


def power_of_two(number: int) -> int:
    """The least that is not below."""
    return 1 << max(0, number - 1).bit_length()


@dataclass(frozen=True)
class Sorting:
    """Where the sorted pairs and the tiles lie, in numbers of four bytes.

    pairs: of the call. rows: of a tile. block: pairs that one program sorts. bins: of a histogram,
    the last of which no expert has.
    """

    pairs: int
    rows: int
    block: int
    bins: int

    @classmethod
    def of(cls, spec: ExpertsSpec, bucket: int, tokens: int, rows: int) -> Sorting:
        """Of a call; all calls of a bucket have the same block and bins."""
        block = min(1024, max(128, power_of_two(bucket * spec.top_k)))
        return cls(tokens * spec.top_k, rows, block, power_of_two(spec.experts + 1))

    @property
    def blocks(self) -> int:
        """Programs that sort."""
        return max(1, -(-self.pairs // self.block))

    def most(self, experts: int) -> int:
        """Tiles at most: each expert leaves at most one unfilled, and none is empty."""
        return max(1, min(self.pairs, self.pairs // self.rows + experts))

    def parts(self, experts: int) -> tuple[int, ...]:
        """The sizes of counts, cursors, order, tiles and the number of tiles."""
        histograms = self.blocks * self.bins
        return histograms, histograms, self.pairs, FIELDS * self.most(experts), 1

    def bytes(self, experts: int) -> int:
        """All of them."""
        return 4 * sum(_rounded(part) for part in self.parts(experts))

    def cut(self, workspace: torch.Tensor, experts: int) -> list[torch.Tensor]:
        """counts, cursors, order, tiles and the number of tiles, int32, in a workspace."""
        numbers = workspace[: self.bytes(experts)].view(torch.int32)
        cut, begin = [], 0
        for part in self.parts(experts):
            cut.append(numbers[begin : begin + part])
            begin += _rounded(part)
        return cut


def _rounded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def few_bytes(spec: ExpertsSpec, tokens: int) -> int:
    """Bytes of the activations of a call that is not sorted."""
    return tokens * spec.top_k * spec.intermediate * int(spec.dtype.itemsize)
