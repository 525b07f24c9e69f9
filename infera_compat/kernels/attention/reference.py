"""Attention in plain torch, on a CPU or a GPU: what other kernels are measured against.

Everything that the contract knows, in float32, and slow. Which tokens are whose is worked out on
the device, so a CUDA graph of it may be replayed with other lengths and other contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSpec,
)
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.online_softmax import OnlineSoftmax, parts, slots
from infera_compat.kernels.tiles import cut, tile_size

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Tiles:
    """G tiles of Q query tokens, each of one request.

    rows: [G, Q], int64: the query's row; T where there is none. tables: [G, max blocks], int32.
    seq_lens: [G], int64. positions: [G, Q], int64: the query token's place in its request.
    used: [G, Q], bool.
    """

    rows: torch.Tensor
    tables: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    used: torch.Tensor

    def part(self, tiles: slice) -> _Tiles:
        """Some of the tiles."""
        return _Tiles(*(getattr(self, name)[tiles] for name in self.__dataclass_fields__))


def _tiles(call: AttentionCall) -> _Tiles:
    tokens, requests = call.query.shape[0], call.seq_lens.shape[0]
    starts = call.query_start_loc.to(torch.int64)
    request, offset, used = cut(starts, tokens, tile_size(tokens, requests))
    seq_lens = call.seq_lens.to(torch.int64)
    first = seq_lens - (starts[1:] - starts[:-1])
    return _Tiles(
        rows=torch.where(used, starts[request][:, None] + offset, tokens),
        tables=call.block_table[request],
        seq_lens=seq_lens[request],
        positions=first[request][:, None] + offset,
        used=used,
    )


def _visible(spec: AttentionSpec, tiles: _Tiles, keys: torch.Tensor) -> torch.Tensor:
    """Which keys a query token sees: [G, Q, keys], bool. keys: [keys], int64, their positions."""
    behind = tiles.positions[..., None] - keys
    visible = tiles.used[..., None] & (keys < tiles.seq_lens[:, None])[:, None]
    if spec.causal:
        visible = visible & (behind >= 0)
    if spec.window is not None:
        visible = visible & (behind < spec.window)
    return visible


def _by_kv_head(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[G, Q, heads, D] as [G, kv_heads, heads // kv_heads * Q, D].

    All rows that read one KV head stand in one axis, so that a product copies no key.
    """
    return query.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _by_row(result: torch.Tensor, tokens: int) -> torch.Tensor:
    """The way back, and tiles and their rows in one axis: [G * Q, heads, D]. tokens: Q."""
    result = result.unflatten(2, (-1, tokens)).permute(0, 3, 1, 2, 4)
    return result.flatten(2, 3).flatten(0, 1)


class ReferenceAttention(AttentionKernel):
    """Every feature of the contract, over caches of a plain float type."""

    name = "reference_attention"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        """All but quantized caches and windows that may reach forward."""
        floats = ", ".join(str(dtype) for dtype in FLOATS)
        if spec.dtype not in FLOATS:
            return Reason(f"a query of {spec.dtype}", f"one of {floats}")
        if spec.kv_dtype not in FLOATS:
            return Reason(f"a cache of {spec.kv_dtype}", f"one of {floats}")
        if spec.heads % spec.kv_heads:
            return Reason(
                f"{spec.heads} heads over {spec.kv_heads} KV heads",
                "as many query heads for each KV head",
            )
        if spec.window is not None and not spec.causal:
            # The contract says how far a window reaches back, and nothing of how far ahead.
            return Reason("a window without causality", "one or the other")
        return None

    def run(self, call: AttentionCall) -> None:
        """Write all rows of out, those of padding as zeros."""
        tokens = call.query.shape[0]
        if not tokens:
            return
        # One row more, for the rows of tiles that hold no token: nothing is selected by a mask.
        out = call.out.new_zeros((tokens + 1, *call.out.shape[1:]))
        if call.seq_lens.shape[0]:
            for rows, result in self._results(call):
                out.index_copy_(0, rows, result.to(out.dtype))
        call.out.copy_(out[:tokens])

    def _results(self, call: AttentionCall) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Rows of out and what to write there: [rows] and [rows, heads, D], float32."""
        blocks, block_size, kv_heads, head_size = call.key_cache.shape
        heads = call.query.shape[1]
        all_tiles = _tiles(call)
        count, size = all_tiles.rows.shape
        keys = min(call.max_seq_len, call.block_table.shape[1] * block_size) if blocks else 0
        key_bytes = 4 * max(kv_heads * head_size, heads * size)
        rows = (heads // kv_heads, size)  # of a KV head, as _by_kv_head orders them
        per_row = (kv_heads, *rows)
        sinks, slopes = (
            None if it is None else it.float().view(kv_heads, -1, 1).expand(per_row)
            for it in (call.sinks, call.alibi_slopes)
        )
        for some, ranges in parts(count, keys, key_bytes):
            tiles = all_tiles.part(some)
            query = call.query[tiles.rows.clamp(max=call.query.shape[0] - 1)].float()
            query = _by_kv_head(query * call.scale, kv_heads)
            softmax = OnlineSoftmax(query, head_size, None if sinks is None else sinks.flatten(1))
            for begin, end in ranges:
                positions = torch.arange(begin, end, device=query.device)
                where = slots(tiles.tables, positions, block_size, blocks)
                visible = _visible(call.spec, tiles, positions)
                seen = visible.any(1)[..., None, None]
                key = call.key_cache[where].float().permute(0, 2, 3, 1)
                value = torch.where(seen, call.value_cache[where].float(), 0.0).transpose(1, 2)
                scores = torch.matmul(query, key)
                if call.spec.soft_cap is not None:
                    scores = call.spec.soft_cap * torch.tanh(scores / call.spec.soft_cap)
                if slopes is not None:
                    ahead = (positions - tiles.positions[..., None]).float()
                    bias = slopes[..., None] * ahead[:, None, None]
                    scores = scores + bias.flatten(2, 3)
                by_row = visible[:, None, None].expand(-1, -1, rows[0], -1, -1).flatten(2, 3)
                softmax.add(scores, by_row, value)
            yield tiles.rows.flatten(), _by_row(softmax.result(), size)


KERNEL = ReferenceAttention()
