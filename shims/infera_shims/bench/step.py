"""One step's metadata, made by a stock backend's own builder from what the runner would give it.

Upstream: vllm/v1/attention/backend.py `CommonAttentionMetadata` (its fields differ from release to
release: those are filled that are there) and `AttentionMetadataBuilder.build`,
`build_for_cudagraph_capture`; vllm/v1/worker/gpu_model_runner.py `_build_attention_metadata`, which
captures with requests of one token under the longest max_seq_len, and builds anew before a replay.
"""

from __future__ import annotations

import dataclasses
import zlib
from itertools import accumulate
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from infera_compat.bench.cells import AttentionCell

FIELDS = frozenset(field.name for field in dataclasses.fields(CommonAttentionMetadata))


class Step:
    """The tensors of a step, which stay where they are, and what a builder makes of them."""

    def __init__(self, cell: AttentionCell, builder: Any, seq_len: int, device: torch.device):
        """Lay out the requests of a cell: their blocks lie anywhere, block 0 is nobody's.

        builder: the backend's. seq_len: the longest request that the engine would serve.
        """
        self._cell, self._builder, self._longest = cell, builder, seq_len
        starts = torch.tensor([0, *accumulate(cell.query_lens)], dtype=torch.int32)
        lengths = torch.tensor(cell.seq_lens, dtype=torch.int32)
        table, slots = _placed(cell, seq_len)
        self._lengths = lengths.to(device)
        computed = lengths - torch.tensor(cell.query_lens, dtype=torch.int32)
        self._values: dict[str, Any] = {
            "query_start_loc": starts.to(device),
            "query_start_loc_cpu": starts,
            "seq_lens": self._lengths.clone(),
            "num_reqs": cell.batch,
            "num_actual_tokens": cell.tokens,
            "max_query_len": max(cell.query_lens),
            "block_table_tensor": table.to(device),
            "slot_mapping": slots.to(device),
            "causal": True,
            "is_prefilling": torch.tensor(cell.query_lens) > 1,
            "seq_lens_cpu_upper_bound": lengths,
            # Until 0.29.
            "_seq_lens_cpu": lengths,
            "_num_computed_tokens_cpu": computed,
        }

    def built(self) -> Any:
        """The metadata of a step that serves."""
        self._values["seq_lens"].copy_(self._lengths)
        return self._builder.build(0, self._common(max(self._cell.seq_lens)))

    def for_capture(self) -> Any:
        """The metadata that a graph is captured with; `built` comes before its replays."""
        self._values["seq_lens"].fill_(1)
        return self._builder.build_for_cudagraph_capture(self._common(self._longest))

    def _common(self, longest: int) -> Any:
        values = {name: value for name, value in self._values.items() if name in FIELDS}
        return CommonAttentionMetadata(**values, max_seq_len=longest)


def _placed(cell: AttentionCell, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A block table [B, max blocks], int32, and the slots [T], int64, of the new tokens."""
    draw = torch.Generator().manual_seed(zlib.crc32(cell.name.encode()))
    free = iter(torch.randperm(cell.blocks, generator=draw).add_(1).split(1))
    table = torch.zeros(cell.batch, -(-seq_len // cell.block), dtype=torch.int32)
    slots = []
    for row, (length, new) in zip(table, cell.requests, strict=True):
        count = -(-length // cell.block)
        row[:count] = torch.cat([next(free) for _ in range(count)])
        at = torch.arange(length - new, length)
        slots.append(row[at // cell.block].long() * cell.block + at % cell.block)
    return table, torch.cat(slots)
