"""The experts: a MoE layer as an ExpertsSpec, `FusedMoEExpertsModular.apply` as an ExpertsCall.

Upstream: vllm/model_executor/layers/fused_moe/modular_kernel.py, `apply` with the same fifteen
parameters in every release. On GPUs unquantised weights lie as the contract wants them where stock
takes its Triton kernel; others store them in another order and stay stock. On the CPU (from 0.30)
stock packs them once they are loaded: for a layer that a kernel takes that step is left out, and
then all of its calls are the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from infera_compat.errors import Refused
from infera_compat.kernels import ops
from infera_compat.kernels.experts.contract import (
    ACTIVATIONS,
    ExpertsCall,
    ExpertsSizes,
    ExpertsSpec,
)
from infera_shims.adapters import adapter
from infera_shims.adapters.adapter import Adapter, Gate, has

PLAIN = "TritonExperts"
"""The one class of GPU experts whose weights lie [experts, gate then up, K], and its name alone:
subclasses of it are quantised or emulate something."""
PACKED_ON_CPU = "CPUUnquantizedExperts"


@dataclass
class ExpertsAdapter(Adapter):
    """MoE layers; see Adapter.

    opaque: the kernel as an op of torch's, for graphs that Dynamo traces; registered before.
    """

    opaque: Callable[[ExpertsCall], None] = field(init=False)

    def __post_init__(self) -> None:
        """Register the op: nothing may be registered while a graph is traced."""
        self.opaque = ops.as_op(self.kernel)

    def keep_unpacked(self, experts: Any, layer: Any) -> ExpertsSpec | None:
        """What the kernel is told of a CPU's layer whose weights it wants unpacked, or None."""
        if not _packs(experts):
            return None
        try:
            return self._judge(experts, layer)
        except Refused:
            return None  # said again when the layer's name is known

    def decide(self, name: str, experts: Any, layer: Any, kept: ExpertsSpec | None) -> ExpertsSpec:
        """Take a layer, or raise Refused.

        layer: what holds the weights. kept: what keep_unpacked said of them.
        """
        spec = kept or self._judge(experts, layer)
        if kept is None and _packs(experts):
            raise Refused("its weights were packed for the CPU when they were loaded")
        self.admit(name, spec)
        return spec

    def sizes(self) -> ExpertsSizes:
        """The most that a call may hold: under data parallelism, every rank's tokens."""
        parallel = self.config.parallel_config
        tokens = self.config.scheduler_config.max_num_batched_tokens
        return ExpertsSizes(tokens * parallel.data_parallel_size, self.captured())

    def takes(self, name: str, spec: ExpertsSpec, experts: Any, call: Mapping[str, Any]) -> bool:
        """Whether a call is what its layer's spec says: shapes and flags alone.

        call: apply's arguments by name. LoRA and hooks may be set after a layer was judged. A CPU's
        unpacked weights are the kernel's whatever a table says.
        """
        hidden_states = call["hidden_states"]
        return (
            _as_said(spec, experts, call)
            and self.may_run(hidden_states.device)
            and (hidden_states.device.type == "cpu" or self.prefers(name, hidden_states.shape[0]))
        )

    def run(self, spec: ExpertsSpec, args: Mapping[str, Any]) -> None:
        """Run the kernel on apply's arguments by name.

        Hot path; Dynamo traces it on the CPU, where it becomes one opaque op.
        """
        hidden_states = args["hidden_states"]
        per_token = hidden_states.shape[0] * spec.top_k
        narrow, wide = spec.intermediate, 2 * spec.intermediate
        call = ExpertsCall(
            spec=spec,
            hidden_states=hidden_states,
            w13=args["w1"],
            w2=args["w2"],
            topk_weights=args["topk_weights"],
            topk_ids=args["topk_ids"],
            out=args["output"],
            workspace13=_at_least(
                args["workspace13"], per_token * max(narrow, spec.hidden), hidden_states
            ),
            workspace2=_at_least(
                args["workspace2"], per_token * max(wide, spec.hidden), hidden_states
            ),
            expert_map=args["expert_map"],
            workspace=self.workspace,
            counters=self.counters,
        )
        if torch.compiler.is_compiling():
            self.opaque(call)
        else:
            self.kernel.run(call)

    def _judge(self, experts: Any, layer: Any) -> ExpertsSpec:
        adapter.check(_gates(experts, layer))
        spec = _spec(experts, layer)
        self.ask(spec)
        return spec


def _as_said(spec: ExpertsSpec, experts: Any, call: Mapping[str, Any]) -> bool:
    w1, w2, hidden = call["w1"], call["w2"], call["hidden_states"]
    return (
        tuple(w1.shape) == (spec.experts, 2 * spec.intermediate, spec.hidden)
        and tuple(w2.shape) == (spec.experts, spec.hidden, spec.intermediate)
        and tuple(hidden.shape[1:]) == (spec.hidden,)
        and tuple(call["output"].shape) == tuple(hidden.shape)
        and hidden.dtype == w1.dtype == w2.dtype == call["output"].dtype == spec.dtype
        and call["topk_ids"].shape[1] == spec.top_k
        and (call["expert_map"] is not None) == spec.mapped
        and call["apply_router_weight_on_input"] == spec.weights_on_input
        and call["activation"].value == spec.activation
        and call["a1q_scale"] is None
        and call["a2_scale"] is None
        and not has(experts, "_lora_context")
        and not has(experts, "post_gemm2_hook")
        and not has(w1, "_vllm_is_uva_offloaded")
    )


def _gates(experts: Any, layer: Any) -> Iterator[Gate]:
    kind, moe, quant = type(experts).__name__, experts.moe_config, experts.quant_config
    yield adapter.may_round_by_batch()
    yield Gate(
        kind == PLAIN or _packs(experts),
        kind,
        f"{PLAIN}, whose weights are plain, or a CPU's experts that pack them late (vLLM 0.30)",
    )
    yield Gate(
        experts.quant_dtype is None and experts.weight_quant_dtype is None,
        "quantised experts",
        "plain ones",
    )
    yield Gate(experts.w1_bias is None and experts.w2_bias is None, "a bias", "none")
    clamps = ("gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta")
    clamped = any(has(quant, name) for name in clamps) or has(moe, "swiglu_limit")
    if hasattr(experts, "activation_config"):
        clamped = clamped or has(experts.activation_config, "clamp_limit")
    yield Gate(not clamped, "a clamped activation", "a plain one")
    yield Gate(moe.is_act_and_mul, "experts without a gate", "gated ones")
    yield Gate(
        moe.activation.value in ACTIVATIONS,
        f"activation {moe.activation.value}",
        f"one of {', '.join(ACTIVATIONS)}",
    )
    yield Gate(not moe.is_lora_enabled, "LoRA", "experts without adapters")
    w13, w2 = layer.w13_weight, layer.w2_weight
    yield Gate(
        w13.dim() == 3 and w13.stride(-1) == 1 and w2.stride(-1) == 1,
        f"weights of {tuple(w13.shape)} with strides {tuple(w13.stride())}",
        "[experts, 2N, K], K contiguous",
    )
    yield Gate(
        w13.shape[1] == 2 * w2.shape[2] and w13.shape[2] == w2.shape[1],
        f"weights of {tuple(w13.shape)} and {tuple(w2.shape)}",
        "[experts, 2N, K] and [experts, K, N]",
    )


def _packs(experts: Any) -> bool:
    """Whether these are a CPU's experts, which pack a layer's weights when they are loaded."""
    named = any(base.__name__ == PACKED_ON_CPU for base in type(experts).__mro__)
    # 0.28 and 0.29 have the same name over kernels that route by themselves.
    return (
        named
        and hasattr(experts, "process_weights_after_loading")
        and hasattr(type(experts), "workspace_shapes")
    )


def _spec(experts: Any, layer: Any) -> ExpertsSpec:
    moe, w13, w2 = experts.moe_config, layer.w13_weight, layer.w2_weight
    device = w13.device.type
    return ExpertsSpec(
        experts=int(w13.shape[0]),
        global_experts=moe.num_experts,
        hidden=int(w13.shape[2]),
        intermediate=int(w2.shape[2]),
        top_k=moe.experts_per_token,
        dtype=w13.dtype,
        activation=moe.activation.value,
        mapped=layer.expert_map is not None,
        weights_on_input=bool(layer.apply_router_weight_on_input),
        device=device,
        capability=adapter.capability(device),
    )


def _at_least(scratch: Any, elements: int, like: Any) -> Any:
    """Stock's scratch, or new where stock's experts ask for none (a CPU's)."""
    return scratch if scratch.numel() >= elements else like.new_empty(elements)
