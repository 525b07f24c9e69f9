"""Attention in forty lines of plain torch: right, capturable, and slow. No vLLM anywhere."""

from __future__ import annotations

import torch

from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSpec,
)
from infera_compat.kernels.kernel import Reason

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
AT_ONCE = 1 << 24
"""Elements of keys that are gathered at once."""


class ExampleAttention(AttentionKernel):
    """Each query token gathers its own keys and values; scores and softmax are in float32."""

    name = "example_attention"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        """Causal attention over a cache of the query's own type, without anything special."""
        if spec.dtype not in FLOATS or spec.kv_dtype != spec.dtype:
            types = f"{spec.dtype} over a cache of {spec.kv_dtype}"
            return Reason(types, f"one of {', '.join(map(str, FLOATS))} for both")
        special = {
            "a window": spec.window is not None,
            "a soft cap": spec.soft_cap is not None,
            "sinks": spec.sinks,
            "ALiBi": spec.alibi,
            "attention that is not causal": not spec.causal,
        }
        found = [name for name, is_there in special.items() if is_there]
        return Reason(", ".join(found), "plain causal attention") if found else None

    def run(self, call: AttentionCall) -> None:
        """Write `call.out`, some tokens at a time.

        How many is decided on shapes and max_seq_len alone, so a graph may replay other lengths.
        """
        spec, block_size = call.spec, call.key_cache.shape[1]
        keys = -(-call.max_seq_len // block_size) * block_size
        step = max(1, AT_ONCE // max(1, keys * spec.kv_heads * spec.head_size))
        for first in range(0, call.query.shape[0], step):
            self._some(call, first, min(first + step, call.query.shape[0]))

    def _some(self, call: AttentionCall, first: int, last: int) -> None:
        """The query tokens from `first` to before `last`."""
        spec, block_size = call.spec, call.key_cache.shape[1]
        starts = call.query_start_loc.long()
        token = torch.arange(first, last, device=starts.device)
        # Whose token it is; rows of padding, behind all requests, are taken for the last one's.
        request = torch.searchsorted(starts[1:], token, right=True).clamp(max=len(starts) - 2)
        length = call.seq_lens.long()[request]
        position = length - (starts[request + 1] - token)

        blocks = call.block_table[request, : -(-call.max_seq_len // block_size)].long()
        key, value = (
            cache[blocks].flatten(1, 2).float() for cache in (call.key_cache, call.value_cache)
        )  # [tokens, keys, kv_heads, head_size]
        at = torch.arange(key.shape[1], device=token.device)
        seen = at <= torch.minimum(position, length - 1)[:, None]  # [tokens, keys]

        query = call.query[first:last].float().unflatten(1, (spec.kv_heads, -1))
        scores = torch.einsum("tkgd,tskd->tkgs", query, key) * call.scale
        scores = scores.masked_fill(~seen[:, None, None], torch.finfo(torch.float32).min)
        # A slot that nobody wrote yet may hold NaN, which a weight of zero does not take away.
        value = value.masked_fill(~seen[..., None, None], 0.0)
        result = torch.einsum("tkgs,tskd->tkgd", scores.softmax(-1), value)
        call.out[first:last] = result.flatten(1, 2).to(spec.dtype)


KERNEL = ExampleAttention()
