"""Decoding with MLA in plain torch, on a CPU or a GPU: what other kernels are measured against.

In float32, and slow; a CUDA graph of it may be replayed with other lengths and other contents.
"""

from __future__ import annotations

import torch

from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.mla_decode.contract import (
    MlaDecodeCall,
    MlaDecodeKernel,
    MlaDecodeSpec,
)
from infera_compat.kernels.online_softmax import OnlineSoftmax, parts, slots

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class ReferenceMlaDecode(MlaDecodeKernel):
    """Every shape of the contract, over a cache of a plain float type."""

    name = "reference_mla_decode"

    def supports(self, spec: MlaDecodeSpec) -> Reason | None:
        """All but quantized caches."""
        floats = ", ".join(str(dtype) for dtype in FLOATS)
        if spec.dtype not in FLOATS:
            return Reason(f"a query of {spec.dtype}", f"one of {floats}")
        if spec.kv_dtype not in FLOATS:
            return Reason(f"a cache of {spec.kv_dtype}", f"one of {floats}")
        return None

    def run(self, call: MlaDecodeCall) -> None:
        """Write all rows of out and lse: zeros and -inf where a token sees nothing."""
        requests = call.seq_lens.shape[0]
        if not requests or not call.query.shape[0]:
            return
        blocks, block_size, _ = call.cache.shape
        latent = call.out.shape[2]
        by_request = (requests, -1)
        queries = call.query.unflatten(0, by_request)  # [B, Q, heads, latent + rope]
        tokens, heads = queries.shape[1:3]
        out = call.out.unflatten(0, by_request)
        lse = None if call.lse is None else call.lse.unflatten(0, by_request)
        seq_lens = call.seq_lens.to(torch.int64)
        places = torch.arange(tokens, device=seq_lens.device) + (seq_lens - tokens)[:, None]
        keys = min(call.max_seq_len, call.block_table.shape[1] * block_size) if blocks else 0
        for some, ranges in parts(requests, keys, 4 * max(call.cache.shape[2], heads * tokens)):
            # [B, heads * Q, channels]: in one axis, so that a product copies no key.
            query = (queries[some].float() * call.scale).transpose(1, 2).flatten(1, 2)
            softmax = OnlineSoftmax(query, latent)
            for begin, end in ranges:
                positions = torch.arange(begin, end, device=query.device)
                visible = positions <= places[some][..., None]  # [B, Q, keys]
                where = slots(call.block_table[some], positions, block_size, blocks)
                # One mask for keys and values: a slot that no token sees may hold a NaN.
                key = torch.where(visible.any(1)[..., None], call.cache[where].float(), 0.0)
                scores = torch.matmul(query, key.mT)
                by_row = visible[:, None].expand(-1, heads, -1, -1).flatten(1, 2)
                softmax.add(scores, by_row, key[..., :latent])
            out[some].copy_(softmax.result().unflatten(1, (heads, tokens)).transpose(1, 2))
            if lse is not None:
                logs = softmax.logarithm().unflatten(1, (heads, tokens))
                lse[some].copy_(logs.transpose(1, 2))


KERNEL = ReferenceMlaDecode()
