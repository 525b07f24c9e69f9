"""Calls for kernels, filled at random; whatever a kernel must not read is NaN."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from infera_compat.kernels.attention.contract import AttentionCall, AttentionSpec
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsSpec
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSpec

POISON = math.nan
GUARD = 8
"""Columns beside out that belong to somebody else: rows still begin at multiples of 16 bytes."""

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
LAYOUTS = ("2BNHD", "B2NHD", "BHN2D")


def caches(
    layout: str, blocks: int, block_size: int, heads: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as views [blocks, block_size, heads, size] of a cache of NaN."""
    if layout == "2BNHD":
        both = torch.full((2, blocks, block_size, heads, size), POISON, dtype=dtype)
        return both[0], both[1]
    if layout == "B2NHD":
        both = torch.full((blocks, 2, block_size, heads, size), POISON, dtype=dtype)
        return both[:, 0], both[:, 1]
    both = torch.full((blocks, heads, block_size, 2 * size), POISON, dtype=dtype).transpose(1, 2)
    return both[..., :size], both[..., size:]


def tables(
    lengths: Sequence[int],
    block_size: int,
    begins: Sequence[int] | None = None,
    blocks: int | None = None,
    width: int | None = None,
) -> tuple[torch.Tensor, int]:
    """A block table of shuffled blocks, wider than needed, and the number of blocks.

    What is not needed (beyond a length, or wholly before `begins`) names no block, or one of NaN.
    """
    needed = [math.ceil(length / block_size) for length in lengths]
    blocks = blocks or sum(needed) + 2
    width = width or max(needed, default=0) + 2
    free = list(range(blocks))
    random.shuffle(free)
    unused = free[:2]
    table = [[random.choice([-1, *unused, blocks + 7]) for _ in range(width)] for _ in lengths]
    taken = iter(free[2:])
    for request, row in enumerate(table):
        begin = 0 if begins is None else begins[request]
        for index in range(begin // block_size, needed[request]):
            row[index] = next(taken)
    return torch.tensor(table, dtype=torch.int32), blocks


def fill(cache: torch.Tensor, table: torch.Tensor, lengths: Sequence[int], begins: Any) -> None:
    for row, begin, length in zip(table.tolist(), begins, lengths, strict=True):
        for position in range(begin, length):
            slot = cache[row[position // cache.shape[1]], position % cache.shape[1]]
            slot.copy_(torch.randn(slot.shape))


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Rows of NaN that are a part of something wider: [shape], not contiguous."""
    wide = torch.full((*shape[:-2], shape[-2], shape[-1] + GUARD), POISON, dtype=dtype)
    wide[..., shape[-1] :] = 7.0
    return wide[..., : shape[-1]]


def guarded(out: torch.Tensor) -> bool:
    """Whether what lies beside the rows of `poisoned` is as it was."""
    wide = out._base
    assert wide is not None
    return bool((wide[..., out.shape[-1] :] == 7.0).all())


def attention(
    queries: Sequence[int],
    lengths: Sequence[int],
    *,
    ratio: int = 1,
    kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    layout: str = "2BNHD",
    padding: int = 0,
    looser: int = 0,
    blocks: int | None = None,
    width: int | None = None,
    **features: Any,
) -> AttentionCall:
    """A request for each of `queries` and `lengths`; padding: rows; looser: added to the maxima.

    blocks, width: of the cache and of the block table, where they are not to follow from lengths.
    """
    heads, tokens = kv_heads * ratio, sum(queries) + padding
    spec = AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        block_size=block_size,
        device="cpu",
        **features,
    )
    begins = [0] * len(lengths)
    if spec.window is not None:
        pairs = zip(queries, lengths, strict=True)
        begins = [max(0, length - query + 1 - spec.window) for query, length in pairs]
    table, blocks = tables(lengths, block_size, begins, blocks, width)
    keys, values = caches(layout, blocks, block_size, kv_heads, head_size, spec.kv_dtype)
    fill(keys, table, lengths, begins)
    fill(values, table, lengths, begins)
    packed = torch.randn(tokens, heads + 2 * kv_heads, head_size).to(dtype)
    packed[sum(queries) :] = POISON
    starts = [sum(queries[:request]) for request in range(len(queries) + 1)]
    return AttentionCall(
        spec=spec,
        query=packed[:, :heads],
        key_cache=keys,
        value_cache=values,
        block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        max_query_len=max(queries, default=0) + looser,
        max_seq_len=max(lengths, default=0) + looser,
        scale=head_size**-0.5,
        out=poisoned((tokens, heads, head_size), dtype),
        sinks=torch.randn(heads).to(dtype) if spec.sinks else None,
        alibi_slopes=torch.rand(heads) if spec.alibi else None,
    )


def mla_decode(
    lengths: Sequence[int],
    tokens: int = 1,
    *,
    heads: int = 4,
    latent: int = 64,
    rope: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    lse: bool = True,
    looser: int = 0,
    blocks: int | None = None,
    width: int | None = None,
) -> MlaDecodeCall:
    spec = MlaDecodeSpec(heads, latent, rope, dtype, dtype, block_size, lse, device="cpu")
    table, blocks = tables(lengths, block_size, None, blocks, width)
    # A part of something wider, as where a cache is padded.
    cache = torch.full((blocks, block_size, latent + rope + 8), POISON, dtype=dtype)
    cache = cache[..., : latent + rope]
    fill(cache, table, lengths, [0] * len(lengths))
    rows = tokens * len(lengths)
    return MlaDecodeCall(
        spec=spec,
        query=torch.randn(rows, heads, latent + rope).to(dtype),
        cache=cache,
        block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        max_seq_len=max(lengths, default=0) + looser,
        scale=(latent + rope) ** -0.5,
        out=poisoned((rows, heads, latent), dtype),
        lse=poisoned((rows, heads), torch.float32) if lse else None,
    )


def experts(
    tokens: int,
    *,
    count: int = 4,
    world: int = 1,
    hidden: int = 48,
    intermediate: int = 24,
    top_k: int = 2,
    dtype: torch.dtype = torch.float32,
    ids: torch.dtype = torch.int64,
    missing: float = 0.2,
    shared: bool = False,
    **flags: Any,
) -> ExpertsCall:
    """count: local experts, of `world` ranks. missing: the share of ids -1. shared: workspace13
    is the memory of out."""
    total = count * world
    spec = ExpertsSpec(
        experts=count,
        global_experts=total,
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        dtype=dtype,
        mapped=world > 1,
        device="cpu",
        **flags,
    )
    expert_map = None
    if world > 1:
        expert_map = torch.full((total,), -1, dtype=torch.int32)
        expert_map[torch.randperm(total)[:count]] = torch.randperm(count).to(torch.int32)
    chosen = torch.rand(tokens, total).argsort(1)[:, :top_k].to(ids)
    chosen[torch.rand(tokens, top_k) < missing] = -1
    weights = torch.rand(tokens, top_k)
    weights[chosen < 0] = POISON
    space = tokens * top_k * max(intermediate, hidden)
    workspace13 = torch.full((space,), POISON, dtype=dtype)
    out = torch.full((tokens, hidden), POISON, dtype=dtype)
    return ExpertsCall(
        spec=spec,
        hidden_states=torch.randn(tokens, hidden).to(dtype),
        w13=(torch.randn(count, 2 * intermediate, hidden) * hidden**-0.5).to(dtype),
        w2=(torch.randn(count, hidden, intermediate) * intermediate**-0.5).to(dtype),
        topk_weights=weights,
        topk_ids=chosen,
        out=workspace13[: tokens * hidden].view(tokens, hidden) if shared else out,
        workspace13=workspace13,
        workspace2=torch.full(
            (tokens * top_k * max(2 * intermediate, hidden),), POISON, dtype=dtype
        ),
        expert_map=expert_map,
    )


def tensors(call: Any) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def with_tensors(call: Any, values: Mapping[str, torch.Tensor]) -> Any:
    return dataclasses.replace(call, **values)


def faked(call: Any, mode: FakeTensorMode) -> Any:
    """The same call with tensors that have no values: who asks for one gets an error."""
    return with_tensors(call, {name: mode.from_tensor(it) for name, it in tensors(call).items()})


def replay(kernel: Any, recorded: Any, replayed: Any) -> None:
    """Record the operations of one call, and run them on the tensors of another: a CUDA graph.

    Numbers and shapes are those of the first; all that the second may change are contents.
    """
    names = tuple(tensors(recorded))

    def step(*values: torch.Tensor) -> None:
        kernel.run(with_tensors(recorded, dict(zip(names, values, strict=True))))

    graph = make_fx(step)(*tensors(recorded).values())
    assert [it.shape for it in tensors(recorded).values()] == [
        it.shape for it in tensors(replayed).values()
    ]
    graph(*tensors(replayed).values())


def snapshot(call: Any, *written: str) -> dict[str, torch.Tensor]:
    """What a kernel only reads."""
    return {name: it.clone() for name, it in tensors(call).items() if name not in written}


def assert_same(call: Any, before: dict[str, torch.Tensor]) -> None:
    for name, was in before.items():
        torch.testing.assert_close(
            getattr(call, name), was, rtol=0, atol=0, equal_nan=True, msg=f"{name} was written"
        )


def assert_agrees(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal within the tolerance of a type, wherever something is expected."""
    asked = ~expected.isnan()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        found.double()[asked], expected[asked], rtol=tolerance, atol=tolerance
    )
