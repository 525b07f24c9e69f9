"""What a cell must move and compute, and the least time that takes at measured rates.

The rates are measured in the same run on the same GPU (rates.py). A floor counts each byte once:
the keys and values of a request, an expert's weights, a step's inputs and outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from infera_compat.bench.cells import AttentionCell, ExpertsCell

ELEMENT = 2
"""Bytes of an element: bfloat16."""


@dataclass(frozen=True)
class Rates:
    """What the GPU was measured at. copy: bytes a second, read and written ones alike.

    matmul: operations a second of a large bfloat16 matrix product.
    """

    copy: float
    matmul: float


@dataclass(frozen=True)
class Work:
    """bytes: moved, at the least. flops: operations; a multiplication and its addition are two."""

    bytes: int
    flops: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes

    def floor_us(self, rates: Rates) -> float:
        """The least time in microseconds: that of the bytes, or of the operations if longer."""
        return 1e6 * max(self.bytes / rates.copy, self.flops / rates.matmul)


def kv_bytes(cell: AttentionCell) -> int:
    """Bytes of keys and values that a cell reads."""
    return 2 * sum(cell.seq_lens) * cell.heads.kv_heads * cell.heads.head_size * ELEMENT


def of_attention(cell: AttentionCell) -> Work:
    """The work of a cell of attention; a causal query sees the keys up to its own."""
    width = cell.heads.heads * cell.heads.head_size
    scores = sum(
        new * (length - new) + new * (new + 1) // 2
        for length, new in zip(cell.seq_lens, cell.query_lens, strict=True)
    )
    queries = 2 * cell.tokens * width * ELEMENT  # and outputs
    return Work(kv_bytes(cell) + queries, 4 * scores * width)


def of_experts(cell: ExpertsCell, hit: float) -> Work:
    """The work of a cell of experts; hit: how many experts its tokens go to, on average."""
    weights = 3 * cell.N * cell.K
    tokens = 2 * cell.M * cell.K  # hidden states and outputs
    return Work(
        round(ELEMENT * (hit * weights + tokens)),
        2 * cell.M * cell.k * weights,
    )
