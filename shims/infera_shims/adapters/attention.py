"""Attention: a layer as an AttentionSpec, a step of `impl.forward` as an AttentionCall.

Upstream: `AttentionImpl.forward` (vllm/v1/attention/backend.py), the same nine parameters in every
release. On GPUs stock writes the KV cache and the kernel reads it through strided views. On the CPU
stock packs it for its own kernel: a layer that a kernel takes there has its cache written here too
(`do_kv_cache_update`, from 0.24), and then all of its steps are the kernel's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from infera_compat.errors import CompatError, Refused
from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
)
from infera_shims.adapters import adapter, metadata
from infera_shims.adapters.adapter import Adapter, Gate, has
from infera_shims.seams.kv_views import live, views
from infera_shims.seams.kv_views.regimes import KV_HALVES, Regime, name_of

PLAIN = {"auto", "bfloat16", "float16", "float32"}
DECODER = "decoder"
SELF_WRITTEN = "CPU_ATTN"
ROW_BYTES = 16
"""Where rows of a cache begin, by the contract."""


@dataclass
class AttentionAdapter(Adapter):
    """Attention layers; see Adapter.

    regimes: by layer, how its cache lies, once it exists and was probed.
    """

    kernel: AttentionKernel
    regimes: dict[str, Regime] = field(default_factory=dict)

    def begin(self, config: Any) -> None:
        """Start anew, as Adapter.begin."""
        super().begin(config)
        self.regimes.clear()

    def decide(self, name: str, layer: Any) -> None:
        """Take a layer, or raise Refused; its cache does not exist yet."""
        if hasattr(layer.impl, "forward_mqa"):
            raise Refused(f"{self.kernel.name} is a kernel for attention, this is MLA")
        adapter.check(adapter.everywhere(self.config))
        adapter.check(_gates(layer, self.config))
        written = name_of(layer.attn_backend) == SELF_WRITTEN
        if written and self.kernel.max_query_len is not None:
            raise Refused(
                f"{self.kernel.name} takes steps of {self.kernel.max_query_len} query tokens a "
                "request alone, and here it must take all of them: it owns the KV cache"
            )
        self.admit(name, _spec(layer, self.config))
        if written:
            self.regimes[name] = KV_HALVES

    def writes(self, layer: Any) -> bool:
        """Whether the cache of a layer is written here, in an order of our own."""
        return layer.layer_name in self.specs and name_of(layer.attn_backend) == SELF_WRITTEN

    def look_at_caches(self) -> None:
        """Probe the caches that vLLM has made by now; a layer is stock's where its is not plain."""
        context = self.config.compilation_config.static_forward_context
        probed: dict[tuple[Any, ...], Regime] = {}
        for name in list(self.specs):
            layer = context[name]
            try:
                if name not in self.regimes:
                    cache = layer.kv_cache
                    kind = (layer.attn_backend, cache.shape, cache.stride(), cache.dtype)
                    if kind not in probed:
                        probed[kind] = live.probe_layer(layer, self.config)
                    self.regimes[name] = probed[kind]
                found = self._views(name, layer.kv_cache, layer.impl)
                adapter.check(rows_of(found))
                spec = dataclasses.replace(self.specs[name], block_size=found.block_size)
                self.admit(name, spec)
            except Refused as refusal:
                if self.writes(layer):
                    raise CompatError(
                        f"{self.kernel.name} owns the KV cache of {name} and can't read it",
                        found=str(refusal),
                        expected="a block size that it takes",
                        do="Set another --block-size, or INFERA_ATTENTION=off.",
                    ) from refusal
                self.drop(name, str(refusal))

    def sizes(self) -> AttentionSizes:
        """The most that a step may hold."""
        return AttentionSizes(**self.step_sizes())

    def write(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        """Put a step's keys and values [T, kv_heads, head_size] into the cache; slot < 0: none."""
        found = self._views(layer.layer_name, cache, layer.impl)
        used = slots[: key.shape[0]]
        used, tokens = used[used >= 0], (used >= 0).nonzero()[:, 0]
        block, slot = used // found.block_size, used % found.block_size
        found.key[block, slot] = key[tokens].to(found.key.dtype)
        if found.value is not None:
            found.value[block, slot] = value[tokens].to(found.key.dtype)

    def run(
        self,
        layer: Any,
        query: Any,
        kv_cache: Any,
        step: Any,
        output: Any,
        output_scale: Any,
        output_block_scale: Any,
    ) -> bool:
        """Run the kernel; False where the step is stock's (nothing was written then).

        Hot path. query, output [T, heads, head_size]; step: the metadata, None in a profile run.
        """
        spec = self.specs.get(layer.layer_name)
        if spec is None or step is None or layer.layer_name not in self.regimes:
            return False
        against = self._against(layer, query, step, output_scale, output_block_scale)
        if against:
            if self.writes(layer):
                raise RuntimeError(
                    f"infera-compat: {self.kernel.name} owns the KV cache of {layer.layer_name}, "
                    f"and this step is not for it: {against}. INFERA_ATTENTION=off serves it."
                )
            self.ledger.hand_over("attention", layer.layer_name)
            return False
        found = self._views(layer.layer_name, kv_cache, layer.impl)
        tokens = step.num_actual_tokens
        requests = step.query_start_loc.shape[0] - 1
        self.kernel.run(
            AttentionCall(
                spec=spec,
                query=query[:tokens],
                key_cache=found.key,
                value_cache=found.value,
                block_table=step.block_table[:requests],
                seq_lens=step.seq_lens[:requests],
                query_start_loc=step.query_start_loc,
                max_query_len=self._max_query_len(step, tokens),
                max_seq_len=step.max_seq_len,
                scale=layer.impl.scale,  # some models set it while they run
                out=output[:tokens].view(tokens, spec.heads, spec.head_size),
                sinks=layer.impl.sinks if spec.sinks else None,
                alibi_slopes=layer.impl.alibi_slopes if spec.alibi else None,
                workspace=self.workspace,
                counters=self.counters,
            )
        )
        return True

    def _against(
        self, layer: Any, query: Any, step: Any, output_scale: Any, output_block_scale: Any
    ) -> str | None:
        if output_scale is not None or output_block_scale is not None:
            return "its output is to be quantised"
        stray = metadata.stray(step, name_of(layer.attn_backend), layer.impl)
        if stray:
            return f"{type(step).__name__}.{stray} is set"
        if not metadata.causal(step):
            return "it is not causal"
        if not self.may_run(query.device):
            return f"{self.kernel.name} can't be captured"
        if not self.writes(layer) and not self.prefers(layer.layer_name, len(step.seq_lens)):
            return "its table prefers stock"
        limit = self.kernel.max_query_len
        if limit is not None and self._max_query_len(step, step.num_actual_tokens) > limit:
            return f"a request has more than {limit} query tokens"
        return None

    def _max_query_len(self, step: Any, tokens: int) -> int:
        """The most query tokens of a request, in this step and in every replay of its graph.

        The V2 runner of 0.22 to 0.30 captures mixed graphs with one token a request and replays
        them on prefills (vllm/v1/worker/gpu/cudagraph_utils.py). Graphs for decoding alone are
        uniform where the mode keeps the two apart.
        """
        apart: bool = self.config.compilation_config.cudagraph_mode.separate_routine()
        if self.ledger.capturing() and not apart:
            return tokens
        return int(step.max_query_len)

    def _views(self, name: str, cache: Any, impl: Any) -> views.Views:
        return views.read(cache, self.regimes[name], impl.num_kv_heads, impl.head_size)


def _gates(layer: Any, config: Any) -> Iterator[Gate]:
    """What must hold of a layer besides what the kernel itself asks for."""
    impl, kind = layer.impl, type(layer).__qualname__
    backend = name_of(layer.attn_backend)
    yield Gate(kind == "Attention", kind, "a plain Attention layer")
    yield Gate(
        backend in metadata.KNOWN,
        backend,
        f"a backend whose metadata has a block table: {', '.join(metadata.KNOWN)}",
    )
    yield Gate(layer.attn_type == DECODER, f"attention of {layer.attn_type}", "a decoder's")
    yield Gate(
        layer.kv_cache_dtype in PLAIN, f"a KV cache of {layer.kv_cache_dtype}", "a plain one"
    )
    if hasattr(layer, "head_size_v"):
        yield Gate(
            layer.head_size_v == layer.head_size,
            f"values of {layer.head_size_v} channels",
            f"{layer.head_size}, as its keys",
        )
    yield Gate(
        impl.kv_sharing_target_layer_name is None, "a KV cache shared with a layer", "its own"
    )
    yield Gate(not has(impl, "use_alibi_sqrt"), "ALiBi by square roots", "plain ALiBi")
    yield Gate(
        not hasattr(impl, "chunk_lookback") or impl.chunk_lookback == -1,
        "attention within chunks",
        "none",
    )
    if backend == SELF_WRITTEN:
        yield Gate(
            "do_kv_cache_update" in vars(_stock(impl))
            and not layer.attn_backend.forward_includes_kv_cache_update,
            "a forward that writes the KV cache itself",
            "a cache update of its own, to write the cache in a plain order (vLLM 0.24)",
        )
        yield Gate(
            config.kv_transfer_config is None, "a KV connector", "no other reader of the cache"
        )
        context = config.compilation_config.static_forward_context.values()
        shared = [x for x in context if has(x, "kv_sharing_target_layer_name")]
        yield Gate(not shared, "layers that share a KV cache", "one writer and reader a cache")


def rows_of(found: views.Views) -> Iterator[Gate]:
    """A cache's rows are as the contract promises them."""
    for cache in filter(lambda it: it is not None, (found.key, found.value)):
        size = cache.element_size()
        yield Gate(cache.stride(-1) == 1, "channels of a cache apart", "them side by side")
        if cache.shape[-1] * size % ROW_BYTES == 0:
            steps = [size * stride for stride in cache.stride()[:-1]]
            yield Gate(
                not any(at % ROW_BYTES for at in (cache.data_ptr(), *steps)),
                f"rows of a cache {steps} bytes apart",
                f"multiples of {ROW_BYTES}",
            )


def _stock(impl: Any) -> type:
    """The class of stock's that an impl is, under our own subclass."""
    return next(cls for cls in type(impl).__mro__ if cls.__module__.startswith("vllm."))


def _spec(layer: Any, config: Any) -> AttentionSpec:
    impl = layer.impl
    dtype = config.model_config.dtype
    kept = layer.kv_cache_dtype
    device = config.device_config.device_type
    return AttentionSpec(
        heads=impl.num_heads,
        kv_heads=impl.num_kv_heads,
        head_size=impl.head_size,
        dtype=dtype,
        kv_dtype=dtype if kept == "auto" else vars(torch)[kept],
        window=layer.sliding_window,
        soft_cap=impl.logits_soft_cap or None,  # None or 0: none
        sinks=has(impl, "sinks"),
        alibi=impl.alibi_slopes is not None,
        device=device,
        capability=adapter.capability(device),
    )
