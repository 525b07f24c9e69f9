"""Calls that have nothing to do: what compiles a kernel and runs none of its loops."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)


def nothing_to_do(
    kernel: AttentionKernel,
    spec: AttentionSpec,
    sizes: AttentionSizes,
    device: torch.device,
    requests: int,
) -> Iterator[AttentionCall]:
    """Calls for `requests` requests without a token, in tensors as steps have them.

    None where no cache exists (spec.block_size); one for each element type that sinks may have.
    """
    if spec.block_size is None:
        return
    query = torch.zeros(1, spec.heads, spec.head_size, dtype=spec.dtype, device=device)
    cache = torch.zeros(
        1, spec.block_size, spec.kv_heads, spec.head_size, dtype=spec.kv_dtype, device=device
    )
    numbers = torch.zeros(requests + 1, dtype=torch.int32, device=device)
    space, tickets = kernel.workspace(spec, sizes), kernel.counters(spec, sizes)
    for dtype in dict.fromkeys((torch.float32, spec.dtype)) if spec.sinks else (torch.float32,):
        per_head = torch.zeros(spec.heads, dtype=dtype, device=device)
        yield AttentionCall(
            spec=spec,
            query=query,
            key_cache=cache,
            value_cache=cache,
            block_table=numbers[:-1, None],
            seq_lens=numbers[:-1],
            query_start_loc=numbers,
            max_query_len=1,
            max_seq_len=1,
            scale=1.0,
            out=torch.zeros_like(query),
            sinks=per_head if spec.sinks else None,
            alibi_slopes=per_head.float() if spec.alibi else None,
            workspace=torch.empty(space, dtype=torch.uint8, device=device) if space else None,
            counters=torch.zeros(tickets, dtype=torch.int32, device=device) if tickets else None,
        )
