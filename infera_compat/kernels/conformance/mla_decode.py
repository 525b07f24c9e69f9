"""Cases of decoding with MLA: lengths, heads of ranks, and layouts of the latent cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from infera_compat.kernels.conformance import buffers, expected, needles
from infera_compat.kernels.conformance.cases import DTYPES, TP, Case, Cases, Part
from infera_compat.kernels.kernel import MLA_DECODE
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSizes, MlaDecodeSpec

KINDS: Mapping[str, tuple[int, ...]] = {
    "tiny": (4,),
    "usual": (33, 7, 64, 129),
    "odd": (31, 5, 77),
}
LARGE: Mapping[bool, tuple[int, ...]] = {
    False: (700, 513),
    True: tuple(8192 - 977 * number % 8192 for number in range(16)),
}
HEADS = (128, 64, 16)  # of DeepSeek V3, Kimi K2 and DeepSeek V2 Lite
CHANNELS = ((512, 64), (256, 64))
BLOCK_SIZES = (16, 32, 48, 64)
CAPTURED_TOKENS = 16384
"""As attention's."""
SHARPNESS = 1.5
"""As attention's; keys are longer here."""

Maker = Callable[[tuple[int, int, int], torch.dtype, torch.device], torch.Tensor]


def _plain(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Any:
    return torch.empty(shape, dtype=dtype, device=device)


def _of_layers(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Any:
    blocks, *page = shape
    return torch.empty((blocks, 3, *page), dtype=dtype, device=device)[:, 1]


def _padded(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Any:
    blocks, *page = shape
    size = math.prod(page)
    return torch.empty((blocks, size + 128), dtype=dtype, device=device)[:, :size].unflatten(
        1, page
    )


LAYOUTS: Mapping[str, Maker] = {
    "(block, slot, channel)": _plain,
    "(block, layer, slot, channel)": _of_layers,
    "padded pages": _padded,
}
USUAL = next(iter(LAYOUTS))


@dataclass(frozen=True)
class MlaDecodePlan:
    """What a call is made from.

    lengths: tokens of each request; 0: a padded row, whose queries are NaN. queries: query
    tokens of each. capacity, marked, loud: as AttentionPlan's.
    """

    spec: MlaDecodeSpec
    kind: str
    lengths: tuple[int, ...]
    queries: int = 1
    layout: str = USUAL
    capacity: int | None = None
    marked: bool = False
    loud: bool = False


class MlaDecodeCases(Cases[MlaDecodePlan]):
    """Cases of decoding with MLA."""

    op = MLA_DECODE

    @property
    def sizes(self) -> MlaDecodeSizes:
        """As AttentionCases'."""
        if self.large:
            return MlaDecodeSizes(1024, 256, 16384, self.captured_sizes)
        return MlaDecodeSizes(64, 16, 1024, self.captured_sizes)

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that graphs are captured for."""
        return (1, 2, 4, 8, 16, 32, 64, 128, 256) if self.large else (1, 2, 5)

    def _plan(self, kind: str = "usual", spec: Any = None, **values: Any) -> MlaDecodePlan:
        given = {"heads": 16, "latent": 512, "rope": 64, "block_size": 16} | (spec or {})
        dtype = given.pop("dtype", torch.bfloat16)
        capability = None
        if self.device.type == "cuda" and torch.version.cuda:
            capability = torch.cuda.get_device_capability(self.device)
        made = MlaDecodeSpec(
            dtype=dtype,
            kv_dtype=dtype,
            device=self.device.type,
            capability=capability,
            **given,
        )
        lengths = LARGE[self.large] if kind == "large" else KINDS[kind]
        return MlaDecodePlan(made, kind, lengths, **values)

    def numerics(self) -> Iterator[MlaDecodePlan]:
        """Element types by kinds, channels, query tokens, and with the logarithms."""
        for dtype in DTYPES:
            for kind in (*KINDS, "large"):
                yield self._plan(kind, {"dtype": dtype})
            for latent, rope in CHANNELS:
                yield self._plan("odd", {"dtype": dtype, "latent": latent, "rope": rope})
            if dtype in needles.LOUD_DTYPES:
                yield self._plan("usual", {"dtype": dtype, "lse": True}, loud=True)
            for queries in (2, 4):
                yield self._plan("usual", {"dtype": dtype}, queries=queries)
            yield self._plan("usual", {"dtype": dtype, "lse": True})
            yield self._plan("usual", {"dtype": dtype, "lse": True}, queries=3)

    def ranks(self) -> Iterator[MlaDecodePlan]:
        """Heads are split; the cache is on each rank whole."""
        for heads in sorted({heads // tp for heads, tp in product(HEADS, TP)}):
            for dtype in (torch.float16, torch.bfloat16):
                yield self._plan("odd", {"heads": heads, "dtype": dtype})

    def paged(self) -> Iterator[MlaDecodePlan]:
        """Block sizes by layouts."""
        for block_size, layout in product(BLOCK_SIZES, LAYOUTS):
            yield self._plan("usual", {"block_size": block_size}, layout=layout)

    def simple(self) -> Iterator[MlaDecodePlan]:
        """With and without logarithms and further query tokens."""
        yield self._plan()
        yield self._plan("odd", {"lse": True, "dtype": torch.float16})
        yield self._plan("usual", {"lse": True}, queries=3)

    def padded(self) -> Iterator[MlaDecodePlan]:
        """Requests of no token, with NaN queries."""
        for queries in (1, 2):
            plan = self._plan("usual", {"lse": True}, queries=queries)
            yield replace(plan, kind="usual, padded", lengths=(*plan.lengths, 0, 0))
            yield replace(plan, kind="padding between", lengths=(9, 0, 40))

    def strided(self) -> Iterator[MlaDecodePlan]:
        """Pages with gaps between them."""
        for layout in LAYOUTS:
            if layout != USUAL:
                yield self._plan(layout=layout)

    def mixed(self) -> Iterator[MlaDecodePlan]:
        """Requests of other lengths, with further query tokens."""
        yield self._plan()
        yield self._plan("odd")
        yield self._plan("usual", {"lse": True}, queries=3)

    def canaries(self) -> Iterator[MlaDecodePlan]:
        """Layouts by query tokens."""
        for layout, queries in product(LAYOUTS, (1, 2)):
            yield self._plan("usual", {"lse": True}, layout=layout, queries=queries, marked=True)

    def captured(self) -> Iterator[tuple[MlaDecodePlan, tuple[MlaDecodePlan, ...]]]:
        """As attention's decode."""
        capacity = 4096 if self.large else 160
        for size in self.captured_sizes:
            reach = min(capacity, max(48, CAPTURED_TOKENS // size))
            lengths = tuple(1 + (131 * number + 97) % reach for number in range(size))
            some = max(1, size - size // 4)
            plan = self._plan("tiny", {"lse": True}, capacity=capacity)
            yield (
                replace(plan, kind=f"dummy, {size} tokens", lengths=(1,) * size),
                (
                    replace(plan, kind=f"replayed, {size} tokens", lengths=lengths),
                    replace(
                        plan,
                        kind=f"replayed, shorter, {size} tokens",
                        lengths=tuple(1 + length // 9 for length in lengths),
                    ),
                    replace(
                        plan,
                        kind=f"replayed, padded, {size} tokens",
                        lengths=lengths[:some] + (0,) * (size - some),
                    ),
                ),
            )

    def refusal(self, plan: MlaDecodePlan) -> str | None:
        """None: a kernel takes what it supports."""
        return None

    def name(self, plan: MlaDecodePlan) -> str:
        """The kind and the shape, and what is not usual."""
        spec = plan.spec
        parts = [
            plan.kind,
            str(spec.dtype).removeprefix("torch."),
            f"heads {spec.heads}",
            f"channels {spec.latent}+{spec.rope}",
            f"block {spec.block_size}",
        ]
        parts += ["large scores"] * plan.loud
        parts += [f"{plan.queries} query tokens"] * (plan.queries > 1) + ["lse"] * spec.lse
        return ", ".join(parts + [plan.layout] * (plan.layout != USUAL))

    def make(self, plan: MlaDecodePlan) -> Case:
        """As attention's."""
        spec, generator = plan.spec, self.generator(plan)
        assert spec.block_size is not None
        requests, channels = len(plan.lengths), spec.latent + spec.rope
        capacity = plan.capacity or max(plan.lengths)
        each = math.ceil(capacity / spec.block_size)
        owned = requests * each
        shape = (owned + 3, spec.block_size, channels)
        cache = LAYOUTS[plan.layout](shape, spec.kv_dtype, self.device)
        dealt = torch.randperm(owned + 3, generator=generator, device=self.device)
        table = dealt[owned].repeat(requests, each + 1)
        if plan.marked:
            buffers.poison([cache])
        else:
            cache.copy_(self.random(generator, *shape, dtype=spec.kv_dtype))
        for request, length in enumerate(plan.lengths):
            blocks = math.ceil(length / spec.block_size)
            table[request, :blocks] = dealt[request * each : request * each + blocks]
            place = torch.arange(length, device=self.device)
            values = self.random(generator, length, channels, dtype=spec.kv_dtype)
            cache[table[request][place // spec.block_size], place % spec.block_size] = values
        if plan.loud:
            cache.add_(needles.loud(channels))
        tokens = requests * plan.queries
        query = buffers.guarded((tokens, spec.heads, channels), spec.dtype, self.device)
        lengths = self.integers(plan.lengths)
        used = (lengths > 0).repeat_interleave(plan.queries)
        values = self.random(generator, *query.shape, dtype=spec.dtype, scale=SHARPNESS)
        query[used] = values[used]
        if plan.loud:
            query.add_(needles.loud(channels))
        for request, length in enumerate(plan.lengths):
            if length and not plan.loud:
                place = torch.arange(length, device=self.device)
                slots = table[request][place // spec.block_size], place % spec.block_size
                rows = query[request * plan.queries : (request + 1) * plan.queries]
                candidates = needles.places(length, plan.queries, spec.block_size, None)
                needles.lean(rows, cache[slots].unsqueeze(1), candidates, generator)
        lse = None
        if spec.lse:
            lse = buffers.guarded((tokens, spec.heads), torch.float32, self.device)
        call = MlaDecodeCall(
            spec=spec,
            query=query,
            cache=cache,
            block_table=table.to(torch.int32),
            seq_lens=lengths,
            max_seq_len=capacity,
            scale=0.8 * channels**-0.5,  # some models have their own
            out=buffers.guarded((tokens, spec.heads, spec.latent), spec.dtype, self.device),
            lse=lse,
        )
        return Case(self.name(plan), call, used, plan)

    def expected(self, call: MlaDecodeCall) -> dict[str, torch.Tensor]:
        """By the naive one in float64."""
        out, lse = expected.mla_decode(call)
        return {"out": out, "lse": lse}

    def parts(self, case: Case) -> Iterator[tuple[str, list[Part]]]:
        """Each request alone; and where there are several query tokens, each of them alone."""
        queries, lengths = case.plan.queries, case.plan.lengths
        yield (
            "each request alone",
            [
                self._part(case.call, each, each * queries, queries, length)
                for each, length in enumerate(lengths)
            ],
        )
        if queries > 1:
            yield (
                "one token at a time",
                [
                    self._part(
                        case.call, each, each * queries + token, 1, length - queries + token + 1
                    )
                    for each, length in enumerate(lengths)
                    for token in range(queries)
                ],
            )

    def _part(
        self, call: MlaDecodeCall, request: int, begin: int, queries: int, length: int
    ) -> tuple[MlaDecodeCall, slice]:
        rows = slice(begin, begin + queries)
        outs = {
            name: buffers.guarded((queries, *it.shape[1:]), it.dtype, self.device)
            for name, it in buffers.outputs(call).items()
        }
        part = replace(
            call,
            query=call.query[rows],
            block_table=call.block_table[request : request + 1],
            seq_lens=self.integers([length]),
            max_seq_len=length,
            **outs,
        )
        return part, rows

    def isolated(self, case: Case) -> Iterator[tuple[str, MlaDecodeCall, torch.Tensor]]:
        """As attention's."""
        call, plan = case.call, case.plan
        assert plan.spec.block_size is not None
        for request, length in enumerate(plan.lengths):
            rows = torch.zeros_like(case.used)
            rows[request * plan.queries : (request + 1) * plan.queries] = True
            own = torch.zeros(call.cache.shape[:2], dtype=torch.bool, device=self.device)
            place = torch.arange(length, device=self.device)
            blocks = call.block_table[request].long()[place // plan.spec.block_size]
            own[blocks, place % plan.spec.block_size] = True
            again = self.make(plan).call
            again.cache[~own] = math.nan
            again.query[~rows] = math.nan
            yield f"request {request} alone is no NaN", again, rows

    def far(self, case: Case, elements: int) -> MlaDecodeCall:
        """The blocks lie at the end of a large cache."""
        call = case.call
        blocks, *page = call.cache.shape
        shift = math.ceil(elements / math.prod(page)) + 1
        cache = torch.empty((shift + blocks, *page), dtype=call.cache.dtype, device=self.device)
        cache[shift:] = call.cache
        moved: MlaDecodeCall = replace(call, cache=cache, block_table=call.block_table + shift)
        return moved
