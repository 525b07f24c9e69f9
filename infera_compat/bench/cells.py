"""Which cells a bench measures: data, the same for every kernel and release.

A cell is one layer's work in one step: its sizes, how it is launched, and what it is held against.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DECODE, PREFILL, MIXED = "decode", "prefill", "mixed"
GRAPH, EAGER = "graph", "eager"
COLD, WARM = "cold", "warm"
FLASH, TRITON = "FLASH_ATTN", "TRITON_ATTN"
BASELINES = (FLASH, TRITON)
MOST = 150
"""Cells of attention that a release is measured at, at most."""

SHORTEST = 16
"""A ragged batch's lengths lie between the longest and the longest by this."""


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and channels of a head, of one rank."""

    heads: int
    kv_heads: int
    head_size: int = 128

    def __str__(self) -> str:
        """As in a cell's name."""
        return f"{self.heads}/{self.kv_heads}x{self.head_size}"


LLAMA = Heads(32, 8)
QWEN = Heads(32, 4)
WIDE = Heads(64, 8)
SHARD = Heads(8, 1)
"""A rank's share under tensor parallelism of 8."""


@dataclass(frozen=True)
class AttentionCell:
    """Attention of one layer in one step.

    phase: one of DECODE, PREFILL, MIXED. requests: of each, tokens with this step's, and how many
    of them are new. block: slots in a block of the cache. mode: GRAPH or EAGER. cache: COLD or
    WARM. baseline: the stock backend. ragged: whether the requests' lengths differ.
    """

    phase: str
    requests: tuple[tuple[int, int], ...]
    heads: Heads
    block: int
    mode: str
    cache: str
    baseline: str
    ragged: bool = False

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.requests)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens of each request, this step's included."""
        return tuple(length for length, _ in self.requests)

    @property
    def query_lens(self) -> tuple[int, ...]:
        """New tokens of each request."""
        return tuple(new for _, new in self.requests)

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return sum(self.query_lens)

    @property
    def blocks(self) -> int:
        """Blocks of the cache that the requests fill."""
        return sum(-(-length // self.block) for length in self.seq_lens)

    @property
    def name(self) -> str:
        """What tells it from all others: "decode B8 S4096 32/8x128 block 16 graph cold …"."""
        length = f"S{max(self.seq_lens)}{' ragged' if self.ragged else ''}"
        new = f" q{max(self.query_lens)}" if self.phase != DECODE else ""
        return (
            f"{self.phase} B{self.batch} {length}{new} {self.heads} block {self.block} "
            f"{self.mode} {self.cache} {self.baseline}"
        )


@dataclass(frozen=True)
class ExpertsCell:
    """The experts of one layer in one step, unquantised.

    E: experts. k: experts a token. K: channels of a token. N: an expert's inner size. M: tokens.
    mode: GRAPH or EAGER.
    """

    E: int
    k: int
    K: int
    N: int
    M: int
    mode: str

    @property
    def name(self) -> str:
        """What tells it from all others: "E128 k8 K2048 N768 M64 graph"."""
        return f"{self.layer} M{self.M} {self.mode}"

    @property
    def layer(self) -> str:
        """The layer's sizes, without the step's."""
        return f"E{self.E} k{self.k} K{self.K} N{self.N}"


def ragged(batch: int, longest: int, seed: int = 0) -> tuple[tuple[int, int], ...]:
    """Requests that decode, of lengths up to `longest`, one of them of that length."""
    draw = random.Random(f"{seed} {batch} {longest}")
    lengths = [draw.randint(max(1, longest // SHORTEST), longest) for _ in range(batch - 1)]
    return tuple((length, 1) for length in (longest, *lengths))


def even(batch: int, length: int, new: int = 1) -> tuple[tuple[int, int], ...]:
    """Requests of one length."""
    return ((length, new),) * batch


# Of a decoding kernel over what stock picks: batch → lengths. A negative one is ragged.
LENGTHS: dict[int, tuple[int, ...]] = {
    1: (512, 1024, 4096, 8192, 32768),
    2: (512, 1024, 4096, 8192, 32768, -8192),
    4: (512, 1024, 4096, 8192, 32768, -8192),
    8: (512, 1024, 4096, 8192, 32768, -8192),
    16: (512, 1024, 8192, -8192),
    32: (512, 1024, 4096, -8192),
    64: (512, 1024, 8192, -8192),
    256: (512, 1024, 4096, -4096),
}
# The other heads, and blocks of 64: every bucket's ends, so that a table has a word on each.
FEW: dict[int, tuple[int, ...]] = {
    1: (1024, 8192),
    4: (1024, 8192),
    8: (1024, -8192),
    32: (1024, -8192),
    256: (1024, 4096),
}
OTHERS = ((QWEN, 16), (WIDE, 16), (SHARD, 16), (LLAMA, 64))
# Over the portable backend, and where it is launched without a graph or from a warm cache.
SOME: dict[int, tuple[int, ...]] = {1: (1024, 8192), 8: (1024, 8192), 64: (1024,)}
PORTABLE: dict[int, tuple[int, ...]] = {
    1: (1024, 8192),
    4: (4096,),
    8: (1024, -8192),
    32: (4096,),
    64: (1024,),
}
# Prefill: (requests, tokens, new tokens). Mixed: chunks among requests that decode.
LONG, WHOLE, CHUNKS = (1, 16384, 4096), (4, 4096, 4096), (16, 2048, 512)
STEPS = (LONG, WHOLE, CHUNKS)
CHUNKED = ((5120, 1024), (2048, 512), (1200, 300), (8192, 200))
DECODING, DECODED = 64, 4096


def of_decoder() -> Iterator[AttentionCell]:
    """The cells of a kernel that only decodes."""
    yield from _decode(LENGTHS, LLAMA, 16, GRAPH, COLD, FLASH)
    for heads, block in OTHERS:
        yield from _decode(FEW, heads, block, GRAPH, COLD, FLASH)
    yield from _decode(PORTABLE, LLAMA, 16, GRAPH, COLD, TRITON)
    yield from _decode(SOME, LLAMA, 16, EAGER, COLD, FLASH)
    yield from _decode({8: (1024,)}, LLAMA, 16, EAGER, COLD, TRITON)
    yield from _decode({1: (1024,), 8: (1024,), 32: (1024,)}, LLAMA, 16, GRAPH, WARM, FLASH)


def of_any() -> Iterator[AttentionCell]:
    """The cells of a kernel that prefills too."""
    # An engine's prefill runs outside graphs: a piecewise graph leaves attention out.
    for baseline in (TRITON, FLASH):
        for step in STEPS:
            yield _prefill(step, LLAMA, 16, baseline)
        yield _mixed(LLAMA, 16, baseline)
    for heads, block in OTHERS:
        yield _prefill(WHOLE, heads, block, TRITON)
    yield _mixed(LLAMA, 64, TRITON)
    yield from _decode(PORTABLE, LLAMA, 16, GRAPH, COLD, TRITON)
    for heads, block in OTHERS:
        yield from _decode({8: (4096,)}, heads, block, GRAPH, COLD, TRITON)
    yield from _decode({1: (8192,), 8: (1024,), 64: (1024,)}, LLAMA, 16, GRAPH, COLD, FLASH)
    yield from _decode({8: (1024,)}, LLAMA, 16, EAGER, COLD, TRITON)


def attention(max_query_len: int | None) -> tuple[AttentionCell, ...]:
    """The cells of a kernel, by what it says of itself (AttentionKernel.max_query_len)."""
    return tuple(of_any() if max_query_len is None else of_decoder())


SHAPES: tuple[tuple[int, int, int, int], ...] = (
    (128, 8, 2048, 768),
    (64, 6, 2048, 1408),
    (8, 2, 4096, 14336),
    (256, 8, 7168, 256),
    (128, 8, 4096, 192),
)
"""E, k, K, N: Qwen3-30B-A3B, DeepSeek-V2-Lite, Mixtral 8x7B, and two of a rank's shares."""

TOKENS = tuple(2**power for power in range(15))
EAGER_TOKENS = (1, 32, 512, 4096)


def experts() -> tuple[ExpertsCell, ...]:
    """The cells of a kernel for experts."""
    graphs = (ExpertsCell(*shape, M, GRAPH) for shape in SHAPES for M in TOKENS)
    eager = (ExpertsCell(*shape, M, EAGER) for shape in SHAPES[:1] for M in EAGER_TOKENS)
    return (*graphs, *eager)


QUICK = 4
"""A quick run takes one cell of so many."""

TINY = Heads(4, 2, 64)


def rehearsed_attention(max_query_len: int | None) -> tuple[AttentionCell, ...]:
    """A few cells that a CPU runs in seconds by Triton's interpreter: nothing of them is timed."""
    whole = AttentionCell(PREFILL, even(1, 40, 24), TINY, 16, EAGER, COLD, TRITON)
    mixed = AttentionCell(MIXED, ((33, 1), (20, 5)), TINY, 16, EAGER, COLD, TRITON, ragged=True)
    return (
        *_decode({2: (33,), 3: (-40,)}, TINY, 16, EAGER, COLD, TRITON),
        *_decode({2: (17,)}, TINY, 16, GRAPH, WARM, TRITON),
        *((whole, mixed) if max_query_len is None else ()),
    )


def rehearsed_experts() -> tuple[ExpertsCell, ...]:
    """The same for experts."""
    return tuple(ExpertsCell(4, 2, 128, 64, M, mode) for M, mode in ((1, EAGER), (5, GRAPH)))


def _decode(
    lengths: dict[int, tuple[int, ...]],
    heads: Heads,
    block: int,
    mode: str,
    cache: str,
    baseline: str,
) -> Iterator[AttentionCell]:
    for batch, found in lengths.items():
        for length in found:
            requests = ragged(batch, -length) if length < 0 else even(batch, length)
            yield AttentionCell(
                DECODE, requests, heads, block, mode, cache, baseline, ragged=length < 0
            )


def _prefill(step: tuple[int, int, int], heads: Heads, block: int, baseline: str) -> AttentionCell:
    return AttentionCell(PREFILL, even(*step), heads, block, EAGER, COLD, baseline)


def _mixed(heads: Heads, block: int, baseline: str) -> AttentionCell:
    requests: Sequence[tuple[int, int]] = (*ragged(DECODING, DECODED), *CHUNKED)
    return AttentionCell(MIXED, tuple(requests), heads, block, EAGER, COLD, baseline, ragged=True)
