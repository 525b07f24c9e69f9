"""`infera_attention`: prefill, mixed batches and decoding, on any GPU that Triton knows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from infera_compat.kernels import pieces
from infera_compat.kernels.attention import arguments, eligible, infera_decode, settings
from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)
from infera_compat.kernels.attention.nothing import nothing_to_do
from infera_compat.kernels.attention.prefill import prefill
from infera_compat.kernels.attention.settings import Prefilling
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.store import Store

MOST_HEADS = 64
"""Query heads of a KV head: they fill the smallest tile."""
DECODED = 1
"""Query tokens of a request that is decoded beside others' prompts; a prompt has more."""


@dataclass(frozen=True)
class Variant:
    """Prefill for a layer, and steps of so many requests. looked_at: one of pieces.LOOKED_AT."""

    spec: AttentionSpec
    looked_at: int
    settings: Prefilling

    @functools.cached_property
    def tokens(self) -> int:
        """Query tokens of a tile, with all heads that read one KV head."""
        return self.settings.block_m // (self.spec.heads // self.spec.kv_heads)

    @functools.cached_property
    def constants(self) -> Mapping[str, Any]:
        """The kernel's constants."""
        return {
            **arguments.constants(self.spec),
            "FEWEST": DECODED + 1,
            "TOKENS": self.tokens,
            "BLOCK_M": self.settings.block_m,
            "BLOCK_N": self.settings.block_n,
            "BLOCK_D": arguments.channels(self.spec),
            "BLOCK_B": self.looked_at,
        }

    @property
    def options(self) -> Mapping[str, Any]:
        """How Triton is to compile it."""
        return {"num_warps": self.settings.warps, "num_stages": self.settings.stages}

    def launch(self, call: AttentionCall) -> None:
        """Serve the requests with more than DECODED query tokens.

        As many programs as the worst split of the tokens over requests needs.
        """
        requests, tokens = call.seq_lens.shape[0], call.query.shape[0]
        tiles = tokens // self.tokens + min(requests, tokens)
        prefill[(tiles * self.spec.kv_heads,)](
            *arguments.tensors(call, call.query),
            call.scale,
            requests,
            *arguments.strides(call),
            **self.constants,
            **self.options,
        )


@functools.cache
def variant(spec: AttentionSpec, looked_at: int) -> Variant:
    """The variant with the settings that its GPU is known to like."""
    return Variant(spec, looked_at, settings.prefilling(spec))


class InferaAttention(AttentionKernel):
    """All steps of a layer; those that only decode as infera_decode does."""

    name = "infera_attention"

    def supports(self, spec: AttentionSpec) -> Reason | None:
        """As infera_decode; the query heads of a KV head fill a tile at most."""
        reason = eligible.refusal(spec)
        group = spec.heads // spec.kv_heads
        if reason is None and group > MOST_HEADS:
            return Reason(f"{group} heads over one KV head", f"{MOST_HEADS} at most")
        return reason

    def workspace(self, spec: AttentionSpec, sizes: AttentionSizes) -> int:
        """infera_decode's: prefill needs none."""
        return infera_decode.KERNEL.workspace(spec, sizes)

    def warm_up(
        self, spec: AttentionSpec, sizes: AttentionSizes, device: torch.device, store: Store
    ) -> None:
        """Compile both kernels, by launches that have nothing to do."""
        infera_decode.KERNEL.warm_up(spec, sizes, device, store)
        for looked_at in pieces.looked_at_within(sizes.requests):
            for call in nothing_to_do(self, spec, sizes, device, looked_at):
                variant(spec, looked_at).launch(call)

    def run(self, call: AttentionCall) -> None:
        """What infera_decode launches where all decode; else prompts first, then the rest by it."""
        if not (call.query.shape[0] and call.seq_lens.shape[0]):
            return
        if call.max_query_len <= infera_decode.QUERIES[-1]:
            infera_decode.KERNEL.run(call)
        else:
            variant(call.spec, pieces.looked_at(call.seq_lens.shape[0])).launch(call)
            infera_decode.decode(call, DECODED)

    def compiles_for(self) -> Iterator[tuple[Any, Mapping[str, str], Mapping[str, Any]]]:
        """Prefill in each element type, plain and with every feature, and what decodes."""
        yield from infera_decode.KERNEL.compiles_for()
        for spec in arguments.examples():
            constants = variant(spec, pieces.LOOKED_AT[-1]).constants
            yield prefill, arguments.signature(prefill, spec.dtype, constants), constants


KERNEL = InferaAttention()
