"""`infera_mla_decode`: decoding over a latent cache of 16-bit floats, split over all of a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from infera_compat.kernels import pieces
from infera_compat.kernels.attention.arguments import DTYPES, FEWEST_CHANNELS, ROW, signature
from infera_compat.kernels.attention.eligible import processors, unfit
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.limits import KIB, Limits
from infera_compat.kernels.mla_decode.contract import (
    MlaDecodeCall,
    MlaDecodeKernel,
    MlaDecodeSizes,
    MlaDecodeSpec,
)
from infera_compat.kernels.mla_decode.split_latent import add_latents, split_latent
from infera_compat.kernels.pieces import Pieces, power
from infera_compat.kernels.store import Store

MOST_LATENT, MOST_ROPE = 512, 128
"""Channels that a tile holds: what the sums of its rows leave of the registers."""
FEWEST_ROWS, MOST_ROWS = 16, 64
"""Rows of a tile: what a tensor core takes at least, and what registers hold."""
FLOAT_BYTES = 4
PASSED_ON = ("HEADS", "LATENT", "BLOCK_M", "ROWS", "BLOCK_N", "BLOCK_L", "BLOCK_B", "EARLY")
"""split_latent's constants that what adds up needs too."""


@dataclass(frozen=True)
class Tile:
    """How tokens of the cache are read. block_n: tokens of a tile. warps, stages: of a program.

    programs: wanted on each multiprocessor. least: tiles of a piece at least.
    """

    block_n: int
    warps: int
    stages: int
    programs: int = 1
    least: int = 1


TILES: Mapping[int, tuple[tuple[int, Tile], ...]] = {
    16: (
        (182 * KIB, Tile(32, 4, 3, 2)),
        (110 * KIB, Tile(32, 4, 2, 2)),
        (91 * KIB, Tile(32, 4, 3)),
        (55 * KIB, Tile(32, 4, 2)),
    ),
    32: ((110 * KIB, Tile(32, 8, 3)), (74 * KIB, Tile(32, 8, 2)), (55 * KIB, Tile(16, 8, 2))),
    64: ((213 * KIB, Tile(32, 8, 3)), (0, Tile(16, 8, 2))),
}
"""By the rows of a tile; the first one whose shared memory a GPU has, in bytes: what all programs
of a multiprocessor take at most, of 512 and 64 channels, as Triton 3.6 compiles them for sm_80,
sm_90 and sm_100. What is taken otherwise fits sm_86, sm_120 and gfx942. None is timed yet."""


@dataclass(frozen=True)
class Variant:
    """The kernel for a layer and steps of so many requests.

    several: whether a request may have more than one query token. looked_at: one of
    pieces.LOOKED_AT.
    """

    spec: MlaDecodeSpec
    several: bool
    looked_at: int

    @functools.cached_property
    def block_m(self) -> int:
        """Rows of a tile: of two query tokens where there may be several, of more in several."""
        rows = power(self.spec.heads * (2 if self.several else 1))
        return min(max(rows, FEWEST_ROWS), MOST_ROWS)

    @functools.cached_property
    def rows(self) -> int:
        """Of those, the ones that are ever used: a power of two."""
        return self.block_m if self.several else min(power(self.spec.heads), MOST_ROWS)

    @functools.cached_property
    def block_l(self) -> int:
        """Latent channels of a tile."""
        return max(power(self.spec.latent), FEWEST_CHANNELS)

    @functools.cached_property
    def block_r(self) -> int:
        """Channels of a tile that are key alone."""
        return max(power(self.spec.rope), FEWEST_CHANNELS)

    @functools.cached_property
    def tile(self) -> Tile:
        """The first of TILES that the layer's GPU has room for, else the last."""
        limits = Limits.of(self.spec)
        *options, (_, last) = TILES[self.block_m]
        return next((it for shared, it in options if shared <= limits.shared), last)

    @functools.cached_property
    def programs(self) -> int:
        """Wanted in all."""
        return self.tile.programs * processors(torch.device(self.spec.device))

    def m_tiles(self, queries: int) -> int:
        """Tiles of rows of a request of so many query tokens."""
        return -(-queries * self.spec.heads // self.block_m)

    def cut(self, queries: int) -> Pieces:
        """How many pieces the tokens of a step are cut into."""
        return Pieces.of(self.programs, self.m_tiles(queries), self.looked_at)

    def numbers(self, queries: int) -> int:
        """Of scratch, before the pieces' statistics: a row of channels for each row of a piece."""
        return self.cut(queries).most * self.m_tiles(queries) * self.rows * self.block_l

    @property
    def bytes(self) -> int:
        """Of scratch, at most: pieces times their tiles are less than twice the programs."""
        return FLOAT_BYTES * 2 * self.programs * self.rows * (self.block_l + 2)

    @functools.cached_property
    def constants(self) -> Mapping[str, Any]:
        """split_latent's constants, where requests have several pieces."""
        return {
            "HEADS": self.spec.heads,
            "LATENT": self.spec.latent,
            "ROPE": self.spec.rope,
            "SLOTS": self.spec.block_size,
            "SEVERAL": self.several,
            "BLOCK_M": self.block_m,
            "ROWS": self.rows,
            "BLOCK_N": self.tile.block_n,
            "BLOCK_L": self.block_l,
            "BLOCK_R": self.block_r,
            "BLOCK_B": self.looked_at,
            "LSE": False,  # what adds up writes it
            "EARLY": Limits.of(self.spec).early,
        }

    @functools.cached_property
    def constants_alone(self) -> Mapping[str, Any]:
        """split_latent's constants, where each request is one piece."""
        return {**self.constants, "BLOCK_B": 0, "LSE": self.spec.lse}

    @functools.cached_property
    def adding(self) -> Mapping[str, Any]:
        """add_latents' constants."""
        at_once = self.cut(2 if self.several else 1).at_once(self.block_l)
        ours = {name: self.constants[name] for name in PASSED_ON}
        return {**ours, "LSE": self.spec.lse, "AT_ONCE": at_once}

    @functools.cached_property
    def early(self) -> Mapping[str, bool]:
        """How Triton is to launch both."""
        return {"launch_pdl": True} if Limits.of(self.spec).early else {}

    @functools.cached_property
    def options(self) -> Mapping[str, Any]:
        """How Triton is to compile and launch split_latent."""
        return {"num_warps": self.tile.warps, "num_stages": self.tile.stages, **self.early}

    def launch(self, call: MlaDecodeCall) -> None:
        """Serve a call of requests of one query token, or of several."""
        requests = call.seq_lens.shape[0]
        queries = call.query.shape[0] // requests
        cut, m_tiles = self.cut(queries), self.m_tiles(queries)
        alone = cut.alone(requests)
        partial = stats = call.query
        if not alone:
            if call.workspace is None:
                raise ValueError("infera_mla_decode was called without its workspace")
            partial = call.workspace.view(torch.float32)
            stats = partial[self.numbers(queries) :]
        lse = stats if call.lse is None else call.lse
        logs = (0, 0) if call.lse is None else call.lse.stride()
        read, written = strides(call), (*call.out.stride()[:2], *logs)
        wanted = (cut.wanted, self.tile.least)
        split_latent[cut.in_all(requests), m_tiles](
            *(call.query, call.cache, call.block_table, call.seq_lens, call.out, lse),
            *(partial, stats, call.scale, requests, queries, *read, *written, *wanted),
            **(self.constants_alone if alone else self.constants),
            **self.options,
        )
        if alone:
            return
        add_latents[requests, queries * self.spec.heads](
            *(call.seq_lens, call.out, lse, partial, stats, requests, queries, m_tiles),
            *(*written, *wanted),
            **self.adding,
            **pieces.ADDING,
            **self.early,
        )


def strides(call: MlaDecodeCall) -> tuple[int, ...]:
    """In elements: of the query's tokens and heads, the cache's blocks and slots, the table's rows.

    ValueError: rows that do not begin at multiples of 16 bytes.
    """
    rows = (*call.query.stride()[:2], *call.cache.stride()[:2])
    every = (*rows, *call.out.stride()[:2])
    if any(stride % ROW for stride in every):
        raise ValueError(f"rows by strides of {every} elements, expected multiples of {ROW}")
    return (*rows, call.block_table.stride(0))


@functools.cache
def variant(spec: MlaDecodeSpec, several: bool, looked_at: int) -> Variant:
    """The variant, once."""
    return Variant(spec, several, looked_at)


def variants(spec: MlaDecodeSpec, sizes: MlaDecodeSizes) -> Iterator[Variant]:
    """Those that steps within `sizes` have."""
    for several, looked_at in product((False, True), pieces.looked_at_within(sizes.requests)):
        yield variant(spec, several, looked_at)


def idle(each: Variant, requests: int, device: torch.device) -> MlaDecodeCall:
    """A call of so many requests of no token: it writes zeros, and reads no cache."""
    spec = each.spec
    assert spec.block_size is not None
    rows = requests * (2 if each.several else 1)
    numbers = torch.zeros(requests, 1, dtype=torch.int32, device=device)
    channels = spec.latent + spec.rope

    def zeros(*shape: int, dtype: torch.dtype = spec.dtype) -> torch.Tensor:
        return torch.zeros(1, *shape, dtype=dtype, device=device)

    return MlaDecodeCall(
        spec=spec,
        query=zeros(spec.heads, channels).expand(rows, -1, -1),
        cache=zeros(spec.block_size, channels),
        block_table=numbers,
        seq_lens=numbers[:, 0],
        max_seq_len=1,
        scale=1.0,
        out=zeros(spec.heads, spec.latent).expand(rows, -1, -1),
        lse=zeros(spec.heads, dtype=torch.float32).expand(rows, -1) if spec.lse else None,
        workspace=torch.empty(each.bytes, dtype=torch.uint8, device=device),
    )


class InferaMlaDecode(MlaDecodeKernel):
    """Decoding with any number of query tokens, over a cache of 16-bit floats."""

    name = "infera_mla_decode"

    def supports(self, spec: MlaDecodeSpec) -> Reason | None:
        """16-bit floats, up to 512 latent channels and 128 more, multiples of eight."""
        reason = unfit(spec)
        if reason is not None:
            return reason
        for what, channels, most in (
            ("latent", spec.latent, MOST_LATENT),
            ("further", spec.rope, MOST_ROPE),
        ):
            if channels % ROW or not 0 < channels <= most:
                return Reason(f"{channels} {what} channels", f"a multiple of {ROW}, {most} at most")
        return None

    def workspace(self, spec: MlaDecodeSpec, sizes: MlaDecodeSizes) -> int:
        """The pieces: how many depends on the GPU, not on a step."""
        return max(each.bytes for each in variants(spec, sizes))

    def warm_up(
        self, spec: MlaDecodeSpec, sizes: MlaDecodeSizes, device: torch.device, store: Store
    ) -> None:
        """Compile each variant, with and without logarithms: a step may ask for them by itself."""
        if spec.block_size is None:
            return
        for lse in (False, True):
            for each in variants(replace(spec, lse=lse), sizes):
                cut = each.cut(2 if each.several else 1)
                numbers = pieces.numbers_of_requests(each.looked_at)
                for requests in {cut.alone(number): number for number in numbers}.values():
                    each.launch(idle(each, requests, device))

    def run(self, call: MlaDecodeCall) -> None:
        """A launch, and another one where there are few requests."""
        requests, tokens = call.seq_lens.shape[0], call.query.shape[0]
        if requests and tokens:
            variant(call.spec, tokens > requests, pieces.looked_at(requests)).launch(call)

    def compiles_for(self) -> Iterator[tuple[Any, Mapping[str, str], Mapping[str, Any]]]:
        """A rank's heads and a whole layer's, in each element type."""
        for dtype, heads in product(DTYPES, (16, 128)):
            # On no device, and for none: LDS of 64 KiB is what every GPU has.
            spec = MlaDecodeSpec(heads, 512, 64, dtype, dtype, 64, lse=True, device="cpu")
            each = variant(spec, False, pieces.LOOKED_AT[1])
            for function, constants in (
                (split_latent, each.constants_alone),
                (split_latent, each.constants),
                (add_latents, each.adding),
            ):
                yield function, signature(function, dtype, constants), constants


KERNEL = InferaMlaDecode()
