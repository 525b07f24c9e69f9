"""What a kernel must write, worked out a second time, in float64, by request or by expert.

Shares nothing with the reference kernels but the contract. It reads lengths and ids on the host,
and is for tests and `infera-compat verify` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from infera_compat.kernels.attention.contract import AttentionCall
from infera_compat.kernels.experts.contract import GELU, GELU_TANH, SILU, ExpertsCall
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall

ANYTHING = math.nan
"""Stands where the contract asks for nothing: a kernel may write it or leave it alone."""


def _gather(cache: torch.Tensor, blocks: list[int], begin: int, end: int) -> torch.Tensor:
    """Tokens begin to end of a request, in order and in float64: [end - begin, ...]."""
    size = cache.shape[1]
    slots = [cache[blocks[position // size], position % size] for position in range(begin, end)]
    if not slots:
        return cache.new_zeros((0, *cache.shape[2:]), dtype=torch.float64)
    return torch.stack(slots).double()


def attention(call: AttentionCall) -> torch.Tensor:
    """call.out as it should be: [T, heads, head_size], float64; ANYTHING in rows of padding."""
    spec = call.spec
    out = torch.full(call.out.shape, ANYTHING, dtype=torch.float64, device=call.out.device)
    starts = call.query_start_loc.tolist()
    for request, seq_len in enumerate(call.seq_lens.tolist()):
        row, end_row = starts[request], starts[request + 1]
        if seq_len == 0 or row == end_row:
            continue
        places = list(range(seq_len - (end_row - row), seq_len))
        # A window may have left blocks behind that hold another request's tokens by now.
        begin = 0 if spec.window is None else max(0, places[0] - spec.window + 1)
        blocks = call.block_table[request].tolist()
        keys = _gather(call.key_cache, blocks, begin, seq_len)
        values = _gather(call.value_cache, blocks, begin, seq_len)
        place = torch.tensor(places, device=out.device)[:, None]
        position = torch.arange(begin, seq_len, device=out.device)[None, :]
        hidden = torch.zeros((len(places), seq_len - begin), dtype=torch.bool, device=out.device)
        if spec.causal:
            hidden |= position > place
        if spec.window is not None:
            hidden |= position <= place - spec.window
        for head in range(spec.heads):
            kv_head = head * spec.kv_heads // spec.heads
            query = call.query[row:end_row, head].double()
            scores = query @ keys[:, kv_head].T * call.scale
            if spec.soft_cap is not None:
                scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
            if call.alibi_slopes is not None:
                scores = scores + call.alibi_slopes[head].double() * (position - place)
            scores = scores.masked_fill(hidden, -math.inf)
            if call.sinks is not None:  # one more key, of value zero
                sink = call.sinks[head].double().expand(len(places), 1)
                scores = torch.cat([scores, sink], 1)
            weights = torch.softmax(scores, 1)[:, : seq_len - begin]
            out[row:end_row, head] = weights @ values[:, kv_head]
    return out


def mla_decode(call: MlaDecodeCall) -> tuple[torch.Tensor, torch.Tensor]:
    """call.out and call.lse as they should be: [T, heads, latent] and [T, heads], float64.

    A token that sees nothing has zeros and -inf.
    """
    out = torch.zeros(call.out.shape, dtype=torch.float64, device=call.out.device)
    lse = torch.full(out.shape[:2], -math.inf, dtype=torch.float64, device=out.device)
    lengths = call.seq_lens.tolist()
    tokens = call.query.shape[0] // max(1, len(lengths))
    for request, seq_len in enumerate(lengths):
        keys = _gather(call.cache, call.block_table[request].tolist(), 0, seq_len)
        for token in range(tokens):
            seen = seq_len - tokens + token + 1
            if seen <= 0:
                continue
            row = request * tokens + token
            scores = call.query[row].double() @ keys[:seen].T * call.scale
            lse[row] = torch.logsumexp(scores, 1)
            out[row] = torch.softmax(scores, 1) @ keys[:seen, : call.spec.latent]
    return out, lse


def _erf_gelu(gate: torch.Tensor) -> torch.Tensor:
    return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2)))


def _tanh_gelu(gate: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + torch.tanh(inner))


def _silu(gate: torch.Tensor) -> torch.Tensor:
    return gate / (1 + torch.exp(-gate))


_GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    SILU: _silu,
    GELU: _erf_gelu,
    GELU_TANH: _tanh_gelu,
}


def experts(call: ExpertsCall) -> torch.Tensor:
    """call.out as it should be: [M, hidden], float64."""
    spec = call.spec
    out = torch.zeros(call.out.shape, dtype=torch.float64, device=call.out.device)
    local = None if call.expert_map is None else call.expert_map.tolist()
    pairs: dict[int, list[tuple[int, int]]] = {}
    for token, row in enumerate(call.topk_ids.tolist()):
        for choice, expert in enumerate(row):
            mine = expert if local is None or expert < 0 else local[expert]
            if mine >= 0:
                pairs.setdefault(mine, []).append((token, choice))
    for expert, chosen in pairs.items():
        gate, up = call.w13[expert].double().chunk(2)
        down = call.w2[expert].double()
        # A token that chose one expert twice gets it twice: hence no in-place sum over an index.
        for choice in range(spec.top_k):
            rows = [token for token, its in chosen if its == choice]
            if not rows:
                continue
            hidden = call.hidden_states[rows].double()
            result = (_GATES[spec.activation](hidden @ gate.T) * (hidden @ up.T)) @ down.T
            if not spec.weights_on_input:
                result = result * call.topk_weights[rows, choice].double()[:, None]
            out[rows] += result
    return out
