"""MLA decoding: a layer as an MlaDecodeSpec, `impl.forward_mqa` as an MlaDecodeCall.

Upstream: `MLAAttentionImpl.forward_mqa(q, kv_cache, attn_metadata, layer) -> (out, lse | None)`
(vllm/v1/attention/backend.py), in every release, with the decoding tokens alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from infera_compat.errors import Refused
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSizes, MlaDecodeSpec
from infera_shims.adapters import adapter, metadata
from infera_shims.adapters.adapter import Adapter, Gate, has
from infera_shims.adapters.attention import PLAIN
from infera_shims.seams.kv_views import live
from infera_shims.seams.kv_views.regimes import LATENT


@dataclass
class MlaDecodeAdapter(Adapter):
    """MLA layers; see Adapter."""

    looked_at: bool = False

    def begin(self, config: Any) -> None:
        """Start anew, as Adapter.begin."""
        super().begin(config)
        self.looked_at = False

    def decide(self, name: str, layer: Any) -> None:
        """Take a layer, or raise Refused; its cache does not exist yet."""
        if not hasattr(layer.impl, "forward_mqa"):
            raise Refused(f"{self.kernel.name} is a kernel for MLA, this is not")
        adapter.check(adapter.everywhere(self.config))
        adapter.check(_gates(layer))
        self.admit(name, _spec(layer, self.config))

    def writes(self, layer: Any) -> bool:
        """No cache is written here."""
        return False

    def look_at_caches(self) -> None:
        """Probe the caches that vLLM has made by now; a layer is stock's where its is not plain."""
        context = self.config.compilation_config.static_forward_context
        for name in list(self.specs):
            layer = context[name]
            try:
                regime = live.probe_layer(layer, self.config)
                if regime is not LATENT:
                    raise Refused(f"found a KV cache of {regime.name}, expected {LATENT.name}")
                block_size = int(layer.kv_cache.shape[1])
                self.admit(name, dataclasses.replace(self.specs[name], block_size=block_size))
            except Refused as refusal:
                self.drop(name, str(refusal))
        self.looked_at = True

    def sizes(self) -> MlaDecodeSizes:
        """The most that a step may hold."""
        return MlaDecodeSizes(**self.step_sizes())

    def run(self, layer: Any, query: Any, cache: Any, step: Any) -> tuple[Any, Any] | None:
        """Run the kernel: (out [T, heads, latent], lse [T, heads] or None); None: stock's step.

        Hot path. query: [T, heads, latent + rope], or its two parts.
        """
        name = layer.layer_name
        spec = self.specs.get(name)
        if spec is None or not self.looked_at or step is None or step.decode is None:
            return None
        whole = torch.cat(query, dim=-1) if isinstance(query, tuple) else query
        requests = step.num_decodes
        plain = (
            whole.dtype == spec.dtype
            and whole.shape[0] == requests  # one token a request
            and metadata.stray_mla(step.decode) is None
            and self.may_run(whole.device)
            and self.prefers(name, requests)
        )
        if not plain:
            self.ledger.hand_over("attention", name)
            return None
        out = whole.new_empty(requests, spec.heads, spec.latent)
        lse = None
        if layer.impl.need_to_return_lse_for_decode:
            lse = torch.empty(requests, spec.heads, dtype=torch.float32, device=whole.device)
        self.kernel.run(
            MlaDecodeCall(
                spec=dataclasses.replace(spec, lse=True) if lse is not None else spec,
                query=whole,
                cache=cache,
                block_table=step.decode.block_table[:requests],
                seq_lens=step.decode.seq_lens[:requests],
                max_seq_len=step.max_seq_len,
                scale=layer.impl.scale,
                out=out,
                lse=lse,
                workspace=self.workspace,
                counters=self.counters,
            )
        )
        return out, lse


def _gates(layer: Any) -> Iterator[Gate]:
    impl, kind = layer.impl, type(layer).__qualname__
    yield Gate(kind == "MLAAttention", kind, "a plain MLAAttention layer")
    yield Gate(
        layer.kv_cache_dtype in PLAIN, f"a KV cache of {layer.kv_cache_dtype}", "a plain one"
    )
    # Until 0.25 sparse MLA has a base class of its own, from 0.26 a flag.
    sparse = has(impl, "is_sparse") or "Sparse" in "".join(x.__name__ for x in type(impl).__mro__)
    yield Gate(not sparse, "sparse MLA", "MLA over all tokens")


def _spec(layer: Any, config: Any) -> MlaDecodeSpec:
    impl, dtype = layer.impl, config.model_config.dtype
    device = config.device_config.device_type
    return MlaDecodeSpec(
        heads=impl.num_heads,
        latent=impl.kv_lora_rank,
        rope=impl.qk_rope_head_dim,
        dtype=dtype,
        kv_dtype=dtype if layer.kv_cache_dtype == "auto" else vars(torch)[layer.kv_cache_dtype],
        device=device,
        capability=adapter.capability(device),
    )
