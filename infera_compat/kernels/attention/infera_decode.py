"""`infera_decode`: one to eight query tokens a request, the KV cache split over all of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from infera_compat.kernels import pieces
from infera_compat.kernels.attention import arguments, eligible, settings
from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)
from infera_compat.kernels.attention.nothing import nothing_to_do
from infera_compat.kernels.attention.settings import Decoding
from infera_compat.kernels.attention.split_kv import add_pieces, split_kv
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.limits import Limits
from infera_compat.kernels.pieces import Pieces
from infera_compat.kernels.store import Store

QUERIES = (1, 8)
"""Query tokens of a request that a variant is compiled for, at most."""
MOST_ROWS, FEWEST_ROWS = 64, 16
"""Rows of a tile of queries: what registers hold, and what a tensor core takes at least."""
FLOAT_BYTES = 4
PASSED_ON = ("KV_HEADS", "GROUP", "SIZE", "WINDOW", "SINKS")
"""The layer's constants that what adds up needs too."""


@dataclass(frozen=True)
class Variant:
    """The kernel for a layer, requests of up to `queries` query tokens, and so many of them.

    queries: one of QUERIES. looked_at: one of pieces.LOOKED_AT. settings: how keys are cut.
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
        return min(max(pieces.power(self.rows_in_all), FEWEST_ROWS), MOST_ROWS)

    @functools.cached_property
    def rows(self) -> int:
        """Of those, the ones that are ever used: a power of two."""
        return min(pieces.power(self.rows_in_all), self.block_m)

    @functools.cached_property
    def block_d(self) -> int:
        """Channels of a tile."""
        return arguments.channels(self.spec)

    @functools.cached_property
    def tiles(self) -> int:
        """Tiles of queries of a request, over all KV heads."""
        return self.spec.kv_heads * -(-self.rows_in_all // self.block_m)

    @functools.cached_property
    def cut(self) -> Pieces:
        """How many pieces keys are cut into."""
        processors = eligible.processors(torch.device(self.spec.device))
        return Pieces.of(self.settings.programs * processors, self.tiles, self.looked_at)

    @property
    def numbers(self) -> int:
        """Of scratch, before the pieces' statistics: a row of channels for each row of a piece."""
        return self.cut.most * self.tiles * self.rows * self.block_d

    @property
    def bytes(self) -> int:
        """Of scratch: the above, and two numbers more for each row."""
        return FLOAT_BYTES * (self.numbers + 2 * self.cut.most * self.tiles * self.rows)

    @functools.cached_property
    def constants(self) -> Mapping[str, Any]:
        """split_kv's constants, where requests have several pieces."""
        return {
            **arguments.constants(self.spec),
            "QUERIES": self.queries,
            "M_TILES": self.tiles // self.spec.kv_heads,
            "BLOCK_M": self.block_m,
            "ROWS": self.rows,
            "BLOCK_N": self.settings.block_n,
            "BLOCK_D": self.block_d,
            "BLOCK_B": self.looked_at,
            "EARLY": Limits.of(self.spec).early,
        }

    @functools.cached_property
    def constants_alone(self) -> Mapping[str, Any]:
        """split_kv's constants, where each request is one piece."""
        return {**self.constants, "BLOCK_B": 0}

    @functools.cached_property
    def adding(self) -> Mapping[str, Any]:
        """add_pieces' constants."""
        shared = ("QUERIES", "M_TILES", "BLOCK_M", "ROWS", "BLOCK_N", "BLOCK_D", "BLOCK_B", "EARLY")
        return {
            **{name: self.constants[name] for name in (*PASSED_ON, *shared)},
            "AT_ONCE": self.cut.at_once(self.block_d),
        }

    @functools.cached_property
    def early(self) -> Mapping[str, bool]:
        """How Triton is to launch both."""
        return {"launch_pdl": True} if Limits.of(self.spec).early else {}

    @functools.cached_property
    def options(self) -> Mapping[str, Any]:
        """How Triton is to compile and launch split_kv."""
        its = self.settings
        return {"num_warps": its.warps, "num_stages": its.stages, **self.early}

    def launch(self, call: AttentionCall) -> None:
        """Serve the requests of a call that it is for; others are left alone."""
        requests = call.seq_lens.shape[0]
        alone = self.cut.alone(requests)
        partial = stats = call.query
        if not alone:
            if call.workspace is None:
                raise ValueError("infera_decode was called without its workspace")
            partial = call.workspace.view(torch.float32)
            stats = partial[self.numbers :]
        tensors, strides = arguments.tensors(call, stats), arguments.strides(call)
        wanted = (self.cut.wanted, self.settings.least)
        split_kv[self.cut.in_all(requests), self.tiles](
            *(*tensors, partial, stats, call.scale, requests, *strides, *wanted),
            **(self.constants_alone if alone else self.constants),
            **self.options,
        )
        if alone:
            return
        _, _, _, _, seq_lens, starts, out, sinks, _ = tensors
        add_pieces[requests * self.spec.kv_heads, self.rows_in_all](
            *(seq_lens, starts, out, sinks, partial, stats, requests, *strides[-2:], *wanted),
            **self.adding,
            **pieces.ADDING,
            **self.early,
        )


@functools.cache
def variant(spec: AttentionSpec, queries: int, looked_at: int) -> Variant:
    """The variant with the settings that its GPU is known to like."""
    return Variant(spec, queries, looked_at, settings.decoding(spec, queries, looked_at))


def variants(spec: AttentionSpec, sizes: AttentionSizes) -> Iterator[Variant]:
    """Those that steps within `sizes` have."""
    for queries, looked_at in product(QUERIES, pieces.looked_at_within(sizes.requests)):
        yield variant(spec, queries, looked_at)


def decode(call: AttentionCall, queries: int) -> None:
    """Serve the requests that have at most so many query tokens. queries: one of QUERIES."""
    variant(call.spec, queries, pieces.looked_at(call.seq_lens.shape[0])).launch(call)


class InferaDecode(AttentionKernel):
    """Decoding and speculative verification, over any layout and block size."""

    name = "infera_decode"
    max_query_len = QUERIES[-1]

    def supports(self, spec: AttentionSpec) -> Reason | None:
        """16-bit floats, heads of up to 256 channels, every feature of the contract."""
        return eligible.refusal(spec)

    def workspace(self, spec: AttentionSpec, sizes: AttentionSizes) -> int:
        """The pieces: how many depends on the GPU, not on a step."""
        return max(each.bytes for each in variants(spec, sizes))

    def warm_up(
        self, spec: AttentionSpec, sizes: AttentionSizes, device: torch.device, store: Store
    ) -> None:
        """Compile each variant, by launches that have nothing to do."""
        for each in variants(spec, sizes):
            numbers = pieces.numbers_of_requests(each.looked_at)
            for requests in {each.cut.alone(number): number for number in numbers}.values():
                for call in nothing_to_do(self, spec, sizes, device, requests):
                    each.launch(call)

    def run(self, call: AttentionCall) -> None:
        """A launch, and another one where there are few requests."""
        if call.query.shape[0] and call.seq_lens.shape[0]:
            decode(call, next(most for most in QUERIES if call.max_query_len <= most))

    def compiles_for(self) -> Iterator[tuple[Any, Mapping[str, str], Mapping[str, Any]]]:
        """Each number of query tokens in each element type, plain and with every feature."""
        for spec, queries in product(arguments.examples(), QUERIES):
            each = variant(spec, queries, pieces.LOOKED_AT[1])
            for function, constants in (
                (split_kv, each.constants_alone),
                (split_kv, each.constants),
                (add_pieces, each.adding),
            ):
                yield function, arguments.signature(function, spec.dtype, constants), constants


KERNEL = InferaDecode()
