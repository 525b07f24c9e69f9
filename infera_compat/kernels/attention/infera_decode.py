"""`infera_decode`: one to eight query tokens a request, the KV cache split over all of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from infera_compat.kernels.attention import arguments, eligible, settings
from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)
from infera_compat.kernels.attention.nothing import nothing_to_do
from infera_compat.kernels.attention.settings import Decoding
from infera_compat.kernels.attention.split_kv import LEVELS, split_kv
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.limits import Limits
from infera_compat.kernels.store import Store

QUERIES = (1, 8)
"""Query tokens of a request that a variant is compiled for, at most."""
MOST_ROWS, FEWEST_ROWS = 64, 16
"""Rows of a tile of queries: what registers hold, and what a tensor core takes at least."""
MERGED_ELEMENTS, MERGED_PIECES = 4096, 16
"""What a program adds up at once, at most: 32 registers of each of 128 threads."""
FLOAT_BYTES = 4
PIECES = 2
"""Of heads that a program may have to share with others: its first and its last."""


@dataclass(frozen=True)
class Variant:
    """The kernel for a layer, requests of up to `queries` query tokens, and so many of them.

    queries: one of QUERIES. looked_at: one of arguments.LOOKED_AT. settings: how it is dealt out.
    """

    spec: AttentionSpec
    queries: int
    looked_at: int
    settings: Decoding

    @functools.cached_property
    def rows_in_all(self) -> int:
        """Rows of queries that read one KV head."""
        return self.queries * (self.spec.heads // self.spec.kv_heads)

    @functools.cached_property
    def block_m(self) -> int:
        """Rows of a tile of queries."""
        return min(max(arguments.power(self.rows_in_all), FEWEST_ROWS), MOST_ROWS)

    @functools.cached_property
    def rows(self) -> int:
        """Of those, the ones that are ever used: a power of two."""
        return min(arguments.power(self.rows_in_all), self.block_m)

    @functools.cached_property
    def block_d(self) -> int:
        """Channels of a tile."""
        return arguments.channels(self.spec)

    @functools.cached_property
    def programs(self) -> int:
        """Of a launch: as many as the GPU holds at once."""
        return self.settings.programs * eligible.processors(torch.device(self.spec.device))

    @property
    def bytes(self) -> int:
        """Of scratch: a row for each query of each piece, and two numbers more."""
        return FLOAT_BYTES * PIECES * self.programs * self.rows * (self.block_d + 2)

    @property
    def tickets(self) -> int:
        """A ticket for each piece and level of merging."""
        return LEVELS * PIECES * self.programs

    @functools.cached_property
    def constants(self) -> Mapping[str, Any]:
        """The kernel's constants."""
        at_once = MERGED_ELEMENTS // (self.rows * self.block_d)
        return {
            **arguments.constants(self.spec),
            "QUERIES": self.queries,
            "M_TILES": -(-self.rows_in_all // self.block_m),
            "BLOCK_M": self.block_m,
            "ROWS": self.rows,
            "BLOCK_N": self.settings.block_n,
            "BLOCK_D": self.block_d,
            "BLOCK_B": self.looked_at,
            "AT_ONCE": max(1, min(MERGED_PIECES, at_once)),
            "EARLY": Limits.of(self.spec).early,
        }

    @functools.cached_property
    def options(self) -> Mapping[str, Any]:
        """How Triton is to compile and launch it."""
        overlap = {"launch_pdl": True} if self.constants["EARLY"] else {}
        return {"num_warps": self.settings.warps, "num_stages": self.settings.stages, **overlap}

    def launch(self, call: AttentionCall) -> None:
        """Serve the requests of a call that it is for; others are left alone."""
        if call.workspace is None or call.counters is None:
            raise ValueError("infera_decode was called without its workspace or its counters")
        partial = call.workspace.view(torch.float32)
        stats = partial[PIECES * self.programs * self.rows * self.block_d :]
        split_kv[(self.programs,)](
            *arguments.tensors(call, stats),
            partial,
            stats,
            call.counters,
            call.scale,
            call.seq_lens.shape[0],
            *arguments.strides(call),
            self.settings.merge,
            self.settings.least,
            **self.constants,
            **self.options,
        )


@functools.cache
def variant(spec: AttentionSpec, queries: int, looked_at: int) -> Variant:
    """The variant with the settings that its GPU is known to like."""
    return Variant(spec, queries, looked_at, settings.decoding(spec, queries, looked_at))


def variants(spec: AttentionSpec, sizes: AttentionSizes) -> Iterator[Variant]:
    """Those that steps within `sizes` have."""
    for queries, looked_at in product(QUERIES, arguments.looked_at_within(sizes.requests)):
        yield variant(spec, queries, looked_at)


def decode(call: AttentionCall, queries: int) -> None:
    """Serve the requests that have at most so many query tokens. queries: one of QUERIES."""
    variant(call.spec, queries, arguments.looked_at(call.seq_lens.shape[0])).launch(call)


class InferaDecode(AttentionKernel):
    """Decoding and speculative verification, over any layout and block size."""

    name = "infera_decode"
    max_query_len = QUERIES[-1]

    def supports(self, spec: AttentionSpec) -> Reason | None:
        """16-bit floats, heads of up to 256 channels, every feature of the contract."""
        return eligible.refusal(spec)

    def workspace(self, spec: AttentionSpec, sizes: AttentionSizes) -> int:
        """What programs hold of heads that they share: it depends on the GPU, not on a step."""
        return max(each.bytes for each in variants(spec, sizes))

    def counters(self, spec: AttentionSpec, sizes: AttentionSizes) -> int:
        """Tickets of those that share a head."""
        return max(each.tickets for each in variants(spec, sizes))

    def warm_up(
        self, spec: AttentionSpec, sizes: AttentionSizes, device: torch.device, store: Store
    ) -> None:
        """Compile each variant, by a launch that has nothing to do."""
        for each in variants(spec, sizes):
            for call in nothing_to_do(self, spec, sizes, device, each.looked_at):
                each.launch(call)

    def run(self, call: AttentionCall) -> None:
        """One launch."""
        if call.query.shape[0] and call.seq_lens.shape[0]:
            decode(call, next(most for most in QUERIES if call.max_query_len <= most))

    def compiles_for(self) -> Iterator[tuple[Any, Mapping[str, str], Mapping[str, Any]]]:
        """Each number of query tokens in each element type, plain and with every feature."""
        for spec, queries in product(arguments.examples(), QUERIES):
            constants = variant(spec, queries, arguments.LOOKED_AT[-1]).constants
            yield split_kv, arguments.signature(split_kv, spec.dtype, constants), constants


KERNEL = InferaDecode()
