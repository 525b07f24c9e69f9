"""Cases of attention: kinds of batches, features, layouts of the cache, and shapes of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import torch

from infera_compat.kernels.attention.contract import AttentionCall, AttentionSizes, AttentionSpec
from infera_compat.kernels.conformance import buffers, expected, needles
from infera_compat.kernels.conformance.cases import DTYPES, TP, Case, Cases, Part
from infera_compat.kernels.kernel import ATTENTION

Requests = tuple[tuple[int, int], ...]
"""Of each request: its query tokens in this step, and all its tokens, those included."""

KINDS: Mapping[str, Requests] = {
    "tiny": ((1, 1),),
    "decode": ((1, 33), (1, 7), (1, 64), (1, 129)),
    "prefill": ((5, 5), (17, 17), (64, 64)),
    "chunked prefill": ((8, 40), (16, 48), (3, 65)),
    "mixed": ((1, 50), (1, 1), (13, 13), (7, 39)),
    "odd": ((1, 31), (3, 3), (17, 33)),
    "verification": ((4, 50), (1, 70), (4, 4), (3, 39)),  # of tokens that were guessed
}
LARGE: Mapping[bool, Mapping[str, Requests]] = {
    False: {"large decode": ((1, 700), (1, 513)), "large prefill": ((200, 300),)},
    True: {
        "large decode": tuple((1, 8192 - 977 * number % 8192) for number in range(16)),
        "large prefill": ((2048, 2048), (511, 4096)),
    },
}
"""By whether it runs on a GPU."""

HEADS = ((32, 8), (64, 8), (8, 1), (28, 4), (40, 8))  # groups of 7 and 5 heads are real too
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32, 48, 64, 128)  # 48: no power of two, as hybrid models have
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "window 16": {"window": 16},
    "window 1": {"window": 1},
    "soft cap": {"soft_cap": 5.0},
    "sinks": {"sinks": True},
    "ALiBi": {"alibi": True},
    "not causal": {"causal": False},
    "window and sinks": {"window": 16, "sinks": True},
    "window and soft cap": {"window": 24, "soft_cap": 5.0},
}

WIDE = 200
SCALE = 0.8
"""Of the usual scale: some models have their own."""
CAPTURED_TOKENS = 16384
"""Tokens of all requests of a replay, about: the expectation is slow."""
BEHIND = 64.0
"""What blocks hold that a window left behind: another request's numbers, so no NaN, and large."""
SHARPNESS = 2.0
"""How much larger queries are than keys: few keys then decide."""
PAGE_PADDING = 128
"""Elements between pages that are padded."""

CacheShape = tuple[int, int, int, int]
Maker = Callable[[CacheShape, torch.dtype, torch.device], tuple[torch.Tensor, torch.Tensor]]


def _apart(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> Any:
    both = torch.empty((2, *shape), dtype=dtype, device=device)
    return both[0], both[1]


def _by_block(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> Any:
    blocks, *page = shape
    both = torch.empty((blocks, 2, *page), dtype=dtype, device=device)
    return both[:, 0], both[:, 1]


def _by_head(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> Any:
    blocks, slots, heads, channels = shape
    both = torch.empty((blocks, heads, slots, 2 * channels), dtype=dtype, device=device)
    return both[..., :channels].transpose(1, 2), both[..., channels:].transpose(1, 2)


def _padded(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> Any:
    blocks, *page = shape
    size = math.prod(page)
    pages = torch.empty((blocks, 2 * size + PAGE_PADDING), dtype=dtype, device=device)
    return tuple(pages[:, at : at + size].unflatten(1, page) for at in (0, size))


LAYOUTS: Mapping[str, Maker] = {
    "(2, block, slot, head, channel)": _apart,
    "(block, 2, slot, head, channel)": _by_block,
    "(block, head, slot, 2 channels)": _by_head,
    "padded pages": _padded,
}
"""How releases of vLLM lay a cache out; each makes (key_cache, value_cache)."""
USUAL = next(iter(LAYOUTS))


@dataclass(frozen=True)
class AttentionPlan:
    """What a call is made from.

    kind: what the requests are called. padding: rows of query after the last request's, NaN.
    capacity: tokens of a request that the block table has room for, and max_seq_len; None: the
    longest one's. most_queries: max_query_len; None: the most that a request has.
    strided: gaps between rows of query and out. marked: NaN in each slot that no request owns.
    loud: scores too large for exp without their maximum.
    """

    spec: AttentionSpec
    kind: str
    requests: Requests
    layout: str = USUAL
    padding: int = 0
    capacity: int | None = None
    most_queries: int | None = None
    strided: bool = False
    marked: bool = False
    loud: bool = False


class AttentionCases(Cases[AttentionPlan]):
    """Cases of attention."""

    op = ATTENTION

    @property
    def sizes(self) -> AttentionSizes:
        """As a small server has them, and far below on a CPU."""
        if self.large:
            return AttentionSizes(8192, 256, 16384, self.captured_sizes)
        return AttentionSizes(512, 16, 1024, self.captured_sizes)

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that graphs are captured for."""
        return (1, 2, 4, 8, 16, 32, 64, 128, 256) if self.large else (1, 2, 5)

    @property
    def _kinds(self) -> dict[str, Requests]:
        return {**KINDS, **LARGE[self.large]}

    @property
    def _usual_kind(self) -> str:
        most = self.kernel.max_query_len
        kinds = ("mixed", "verification", "decode")
        return next(
            kind for kind in kinds if most is None or max(new for new, _ in KINDS[kind]) <= most
        )

    def _spec(self, **values: Any) -> AttentionSpec:
        dtype = values.pop("dtype", torch.bfloat16)
        kv_dtype = values.pop("kv_dtype", dtype)
        capability = None
        if self.device.type == "cuda" and torch.version.cuda:
            capability = torch.cuda.get_device_capability(self.device)
        usual = {"heads": 8, "kv_heads": 2, "head_size": 64, "block_size": 16}
        return AttentionSpec(
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=self.device.type,
            capability=capability,
            **(usual | values),
        )

    def _plan(self, kind: str | None = None, spec: Any = None, **values: Any) -> AttentionPlan:
        kind = kind or self._usual_kind
        made = self._spec(**(spec or {}))
        return AttentionPlan(made, kind, self._kinds[kind], **values)

    def numerics(self) -> Iterator[AttentionPlan]:
        """Element types by kinds, head sizes and features."""
        for dtype in DTYPES:
            for kind in self._kinds:
                yield self._plan(kind, {"dtype": dtype})
            for kind in LARGE[self.large]:  # windows are of many blocks
                yield self._plan(kind, {"dtype": dtype, "window": WIDE})
            # Kernels often have a way of their own for decoding.
            for kind in dict.fromkeys((self._usual_kind, "decode")):
                for size in HEAD_SIZES:
                    yield self._plan(kind, {"dtype": dtype, "head_size": size})
                for feature in FEATURES.values():
                    yield self._plan(kind, {"dtype": dtype, **feature})
                other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
                yield self._plan(kind, {"dtype": dtype, "kv_dtype": other})
                if dtype in needles.LOUD_DTYPES:
                    yield self._plan(kind, {"dtype": dtype}, loud=True)

    def ranks(self) -> Iterator[AttentionPlan]:
        """Heads are split; a KV head of which there are too few is on several ranks."""
        shapes = {(heads // tp, max(1, kv // tp)) for (heads, kv), tp in product(HEADS, TP)}
        for heads, kv_heads in sorted(shapes):
            for dtype in (torch.float16, torch.bfloat16):
                values = {"heads": heads, "kv_heads": kv_heads, "head_size": 128, "dtype": dtype}
                for kind in dict.fromkeys((self._usual_kind, "decode")):
                    yield self._plan(kind, values)

    def paged(self) -> Iterator[AttentionPlan]:
        """Block sizes by layouts."""
        for block_size, layout in product(BLOCK_SIZES, LAYOUTS):
            for kind in dict.fromkeys((self._usual_kind, "decode")):
                yield self._plan(kind, {"block_size": block_size}, layout=layout)

    def simple(self) -> Iterator[AttentionPlan]:
        """Each kind, and a window."""
        for kind in dict.fromkeys(("decode", "prefill", "mixed", self._usual_kind)):
            yield self._plan(kind)
        yield self._plan(None, {"window": 16, "dtype": torch.float16})

    def mixed(self) -> Iterator[AttentionPlan]:
        """Batches of several requests, and long prompts."""
        for layout in LAYOUTS:
            yield self._plan(None, layout=layout)
        for kind in ("prefill", "chunked prefill", "large prefill"):
            yield self._plan(kind)
        yield self._plan(None, {"window": 16})

    def padded(self) -> Iterator[AttentionPlan]:
        """Rows after the last request, requests of no token, and both."""
        for kind in dict.fromkeys(("decode", self._usual_kind)):
            plan = self._plan(kind)
            requests = (*plan.requests, (0, 0), (0, 0))
            yield replace(plan, padding=5)
            yield replace(plan, requests=requests)
            yield replace(plan, requests=requests, padding=2)

    def strided(self) -> Iterator[AttentionPlan]:
        """Every kind and layout."""
        for kind in dict.fromkeys(("decode", "prefill", "mixed", self._usual_kind)):
            for layout in LAYOUTS:
                yield self._plan(kind, layout=layout, strided=True)

    def canaries(self) -> Iterator[AttentionPlan]:
        """Kinds by layouts, and windows that left blocks behind."""
        for kind, layout in product(dict.fromkeys(("decode", self._usual_kind)), LAYOUTS):
            yield self._plan(kind, layout=layout, marked=True)
        for kind in dict.fromkeys(("decode", self._usual_kind)):
            yield self._plan(kind, {"window": 10}, marked=True)

    def captured(self) -> Iterator[tuple[AttentionPlan, tuple[AttentionPlan, ...]]]:
        """Captured on requests of one token, as vLLM's dummy runs are; replayed on longer ones."""
        capacity = 4096 if self.large else 160
        for size in self.captured_sizes:
            reach = min(capacity, max(48, CAPTURED_TOKENS // size))
            lengths = [1 + (131 * number + 97) % reach for number in range(size)]
            some = max(1, size - size // 4)
            requests = {
                "dummy": ((1, 1),) * size,
                "replayed decode": tuple((1, length) for length in lengths),
                "replayed decode, shorter": tuple((1, 1 + length // 9) for length in lengths),
                # Graphs of a size hold any smaller batch too: the rest is padding.
                "replayed decode, padded": (
                    *((1, length) for length in lengths[:some]),
                    *((0, 0),) * (size - some),
                ),
            }
            yield self._replays(requests, size, capacity, 1)
        if self._usual_kind == "decode":
            return
        uniform = {
            "dummy": ((4, 4),) * 4,
            "replayed verification": ((4, 50), (4, 9), (4, 90), (4, 33)),
            "replayed verification, padded": ((4, 70), (4, 20), (0, 0), (0, 0)),
        }
        yield self._replays(uniform, 16, capacity, 4)
        if self._usual_kind == "verification":
            return
        for tokens in (8, 64):
            yield self._replays(
                {
                    "dummy": ((1, 1),) * 3 + ((tokens - 3, tokens - 3),),
                    "replayed mixed": ((tokens - 5, tokens), (2, 90), (2, 2), (1, 33)),
                    "replayed prefill": ((tokens, tokens + 40), (0, 0), (0, 0), (0, 0)),
                    "replayed mixed, padded": ((2, 50), (1, 64), (1, 17), (0, 0)),
                },
                tokens,
                capacity,
                tokens,
            )

    def _replays(
        self, requests: Mapping[str, Requests], tokens: int, capacity: int, most: int
    ) -> tuple[AttentionPlan, tuple[AttentionPlan, ...]]:
        first, *others = (
            AttentionPlan(
                self._spec(),
                f"{kind}, {tokens} tokens",
                each,
                padding=tokens - sum(query for query, _ in each),
                capacity=capacity,
                most_queries=most,
            )
            for kind, each in requests.items()
        )
        return first, tuple(others)

    def refusal(self, plan: AttentionPlan) -> str | None:
        """A step with more query tokens than the kernel says is stock's."""
        most, asked = self.kernel.max_query_len, max(query for query, _ in plan.requests)
        return None if most is None or asked <= most else f"max_query_len is {most}"

    def name(self, plan: AttentionPlan) -> str:
        """The kind and the shape, and what is not usual."""
        spec = plan.spec
        parts = [
            plan.kind,
            str(spec.dtype).removeprefix("torch."),
            f"heads {spec.heads}/{spec.kv_heads}",
            f"head size {spec.head_size}",
            f"block {spec.block_size}",
        ]
        for field, usual in (("window", None), ("soft_cap", None), ("sinks", False)):
            if getattr(spec, field) != usual:
                parts.append(f"{field} {getattr(spec, field)}")
        parts += ["ALiBi"] * spec.alibi + ["not causal"] * (not spec.causal)
        parts += [plan.layout] * (plan.layout != USUAL) + ["strided"] * plan.strided
        parts += ["large scores"] * plan.loud
        parts += [f"{plan.padding} rows of padding"] * bool(plan.padding)
        return ", ".join(parts)

    def make(self, plan: AttentionPlan) -> Case:
        """Blocks are dealt in a random order; the table's tail points at blocks of nobody."""
        spec, generator = plan.spec, self.generator(plan)
        assert spec.block_size is not None
        queries = [query for query, _ in plan.requests]
        lengths = [length for _, length in plan.requests]
        capacity = plan.capacity or max(lengths)
        each = math.ceil(capacity / spec.block_size)
        owned = len(lengths) * each
        shape = (owned + 3, spec.block_size, spec.kv_heads, spec.head_size)
        caches = LAYOUTS[plan.layout](shape, spec.kv_dtype, self.device)
        dealt = torch.randperm(owned + 3, generator=generator, device=self.device)
        table = dealt[owned].repeat(len(lengths), each + 1)
        for request, length in enumerate(lengths):
            blocks = math.ceil(length / spec.block_size)
            table[request, :blocks] = dealt[request * each : request * each + blocks]
        for cache in caches:
            if plan.marked:
                buffers.poison([cache])
            else:
                cache.copy_(self.random(generator, *shape, dtype=spec.kv_dtype))
        for cache in caches:
            for request, (query, length) in enumerate(plan.requests):
                self._fill(cache, table[request], query, length, spec, generator)
        if plan.loud:
            caches[0].add_(needles.loud(spec.head_size))
        tokens = sum(queries) + plan.padding
        heads = (tokens, spec.heads, spec.head_size)
        query = buffers.guarded(heads, spec.dtype, self.device, plan.strided)
        query[: sum(queries)] = self.random(
            generator, sum(queries), *heads[1:], dtype=spec.dtype, scale=SHARPNESS
        )
        if plan.loud:
            query.add_(needles.loud(spec.head_size))
        for request, (begin, end) in enumerate(self._ranges(plan.requests)):
            if begin < end and not plan.loud:
                self._lean(query[begin:end], caches[0], table[request], lengths[request], plan)
        ends = [sum(queries[:count]) for count in range(len(queries) + 1)]
        # Not the formula's for so many heads: a rank has a part of the model's.
        slopes = [0.7 * 2.0 ** (-6.0 * (head + 2) / spec.heads) for head in range(spec.heads)]
        call = AttentionCall(
            spec=spec,
            query=query,
            key_cache=caches[0],
            value_cache=caches[1],
            block_table=table.to(torch.int32),
            seq_lens=self.integers(lengths),
            query_start_loc=self.integers(ends),
            max_query_len=plan.most_queries or max(queries),
            max_seq_len=capacity,
            scale=SCALE * spec.head_size**-0.5,
            out=buffers.guarded(heads, spec.dtype, self.device, plan.strided),
            sinks=self.random(generator, spec.heads, dtype=spec.dtype) if spec.sinks else None,
            alibi_slopes=self.integers(slopes, torch.float32) if spec.alibi else None,
        )
        used = torch.arange(tokens, device=self.device) < sum(queries)
        return Case(self.name(plan), call, used, plan)

    def _fill(
        self,
        cache: torch.Tensor,
        table: torch.Tensor,
        query: int,
        length: int,
        spec: AttentionSpec,
        generator: torch.Generator,
    ) -> None:
        """Put a request's tokens into a cache, and BEHIND into what its window left behind."""
        block_size = cache.shape[1]
        place = torch.arange(length, device=self.device)
        values = self.random(generator, length, *cache.shape[2:], dtype=cache.dtype)
        if spec.window is not None and spec.causal:
            # Only whole blocks: a slot beside tokens that are seen still holds the request's own.
            first = max(0, length - query - spec.window + 1)
            values[: first // block_size * block_size] = BEHIND
        cache[table[place // block_size], place % block_size] = values

    def _lean(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        table: torch.Tensor,
        length: int,
        plan: AttentionPlan,
    ) -> None:
        """Give each head of a request a key to look for."""
        spec, block_size = plan.spec, cache.shape[1]
        place = torch.arange(length, device=self.device)
        keys = cache[table[place // block_size], place % block_size]
        by_head = keys.repeat_interleave(spec.heads // spec.kv_heads, 1)
        candidates = needles.places(length, query.shape[0], block_size, spec.window)
        needles.lean(query, by_head, candidates, self.generator(plan))

    def expected(self, call: AttentionCall) -> dict[str, torch.Tensor]:
        """By the naive attention in float64."""
        return {"out": expected.attention(call)}

    def parts(self, case: Case) -> Iterator[tuple[str, list[Part]]]:
        """Each request alone; and each prompt in chunks where it was in one piece."""
        call, requests = case.call, case.plan.requests
        ranges = self._ranges(requests)
        if len(requests) > 1:
            alone = [
                self._part(call, each, *rows, length)
                for each, (rows, (_, length)) in enumerate(zip(ranges, requests, strict=True))
            ]
            yield "each request alone", alone
        for step in (1, 7, 16):
            if all(query <= step for query, _ in requests):
                continue
            chunks = []
            for each, ((begin, end), (_, length)) in enumerate(zip(ranges, requests, strict=True)):
                for at in range(begin, end, step if step > 1 else max(1, (end - begin) // 3)):
                    # Of step 1: a few tokens, each decoded alone.
                    last = min(end, at + step)
                    chunks.append(self._part(call, each, at, last, length - (end - last)))
            yield f"chunks of {step}", chunks

    def _ranges(self, requests: Requests) -> list[tuple[int, int]]:
        ends = [sum(query for query, _ in requests[:count]) for count in range(len(requests) + 1)]
        return list(pairwise(ends))

    def _part(
        self, call: AttentionCall, request: int, begin: int, end: int, length: int
    ) -> tuple[AttentionCall, slice]:
        out = buffers.guarded((end - begin, *call.out.shape[1:]), call.out.dtype, self.device)
        part = replace(
            call,
            query=call.query[begin:end],
            block_table=call.block_table[request : request + 1],
            seq_lens=self.integers([length]),
            query_start_loc=self.integers([0, end - begin]),
            max_query_len=end - begin,
            max_seq_len=length,
            out=out,
        )
        return part, slice(begin, end)

    def isolated(self, case: Case) -> Iterator[tuple[str, AttentionCall, torch.Tensor]]:
        """Of each request: the other ones' slots are NaN, and their queries too."""
        call, plan = case.call, case.plan
        assert plan.spec.block_size is not None
        for request, (begin, end) in enumerate(self._ranges(plan.requests)):
            length = plan.requests[request][1]
            rows = torch.zeros_like(case.used)
            rows[begin:end] = True
            own = torch.zeros(call.key_cache.shape[:2], dtype=torch.bool, device=self.device)
            place = torch.arange(length, device=self.device)
            blocks = call.block_table[request].long()[place // plan.spec.block_size]
            own[blocks, place % plan.spec.block_size] = True
            again = self.make(plan).call
            for cache in (again.key_cache, again.value_cache):
                cache[~own] = math.nan
            again.query[~rows] = math.nan
            yield f"request {request} alone is no NaN", again, rows

    def far(self, case: Case, elements: int) -> AttentionCall:
        """The blocks lie at the end of a large cache; its other blocks are as memory was."""
        call = case.call
        blocks, *page = call.key_cache.shape
        size = math.prod(page)
        more = math.ceil(elements / size) + 1
        # Both halves by block: an offset passes the limit at half as many bytes.
        caches = _by_block((more // 2 + blocks, *page), call.spec.kv_dtype, self.device)
        shift = caches[0].shape[0] - blocks
        for cache, old in zip(caches, (call.key_cache, call.value_cache), strict=True):
            cache[shift:] = old
        table = call.block_table + shift
        moved: AttentionCall = replace(
            call, key_cache=caches[0], value_cache=caches[1], block_table=table
        )
        return moved
