"""vLLM 0.23: FusedMoE is a layer class that holds the weights and the method itself."""

from __future__ import annotations

from dataclasses import replace

from infera_compat.contracts import Need
from infera_shims import v0_24
from infera_shims.needs import FUSED_MOE
from infera_shims.shim import Entry, MoeLayer, Replaced

LAYER = f"{FUSED_MOE}.layer:FusedMoE"

MOE_LAYER = Entry(
    value=MoeLayer(LAYER, "quant_method"),
    symbol="vllm/model_executor/layers/fused_moe/layer.py FusedMoE",
    needs=(
        Need(LAYER, "class", "a MoE layer, in static_forward_context"),
        Need(f"{LAYER}.quant_method", "attribute", "the layer's quantisation method"),
        Need(f"{LAYER}.layer_name", "attribute", "its calls are counted under this name"),
    ),
    first="0.22.0",
    last="0.23.0",
    goes="when 0.23 is no longer supported",
)

MOE_REPLACED = Entry(
    value=Replaced(
        LAYER,
        registered="fused_moe",
        methods=("forward",),
        given=("hidden_states", 0),
        layer_name="layer_name",
    ),
    symbol="vllm/model_executor/layers/fused_moe/layer.py FusedMoE",
    needs=(
        Need(
            LAYER,
            "class",
            "replaced by a subclass, under this class's name",
            bases=("PluggableLayer",),
            decorator="fused_moe",
        ),
        Need(
            f"{LAYER}.forward",
            "method",
            "overridden in the subclass",
            ("self", "hidden_states", "router_logits", "input_ids"),
        ),
        Need(f"{LAYER}.layer_name", "attribute", "its calls are counted under this name"),
    ),
    first="0.22.0",
    last="0.23.0",
    goes="when 0.23 is no longer supported",
)

SHIM = replace(
    v0_24.SHIM,
    name="v0_23",
    first=(0, 23),
    moe_layer=MOE_LAYER,
    moe_replaced=MOE_REPLACED,
)
