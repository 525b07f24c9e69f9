"""vLLM 0.23: FusedMoE is a layer class, and the CPU's MoE goes past the modular kernel."""

from __future__ import annotations

from dataclasses import replace

from infera_compat.contracts import Need
from infera_shims import main
from infera_shims.shim import ELSEWHERE

# Until 0.23: the layer itself holds the weights and the method.
MOE_LAYER = (
    Need(
        "moe",
        f"{main.FUSED_MOE}.layer:FusedMoE",
        "class",
        "a MoE layer, in static_forward_context",
        decorator="fused_moe",
    ),
)

# Until 0.27: on the CPU the unquantised method calls cpu_fused_moe, routing included.
CPU_METHOD = (
    Need(
        "moe",
        f"{main.FUSED_MOE}.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
        "class",
        "replaced by a subclass, under this class's name",
        decorator="unquantized_fused_moe",
    ),
    Need(
        "moe",
        f"{main.FUSED_MOE}.unquantized_fused_moe_method:UnquantizedFusedMoEMethod.apply_monolithic",
        "method",
        "overridden in the subclass",
        ("self", "layer", "x", "router_logits", "input_ids"),
    ),
    Need(
        "moe",
        "vllm.model_executor.custom_op:CustomOp.register_oot",
        "classmethod",
        "registers the subclass",
        ("cls", "_decorated_op_cls", "name"),
    ),
    Need(
        "moe",
        "vllm.model_executor.custom_op:op_registry_oot",
        "variable",
        "tells whether another plugin holds the name",
    ),
)

SHIM = replace(
    main.SHIM,
    name="v0_23",
    first=(0, 23),
    needs=(*main.WORKER, *main.ATTENTION, *main.MODULAR_KERNEL, *MOE_LAYER, *CPU_METHOD),
    moe_seams={ELSEWHERE: "modular_kernel", "cpu": "register_oot"},
    moe_layer=f"{main.FUSED_MOE}.layer:FusedMoE",
    moe_method="quant_method",
)
