"""The newest releases and main: 0.30 and later, as far as their contracts hold.

What an older line has otherwise stands in that line's module, under the same name.
"""

from __future__ import annotations

from infera_compat.contracts import ANY, Need
from infera_shims.needs import COMMON, FUSED_MOE
from infera_shims.shim import Entry, MoeLayer, Replaced, Shim

KERNEL_INIT = Entry(
    value="no inplace",
    symbol="vllm/model_executor/layers/fused_moe/modular_kernel.py FusedMoEKernel.__init__",
    needs=(
        Need(
            f"{FUSED_MOE}.modular_kernel:FusedMoEKernel.__init__",
            "method",
            "every modular kernel is made here",
            ("self", "prepare_finalize", "fused_experts"),
        ),
    ),
    first="0.23.0",
    last=None,
    goes="never: it is what the newest release has",
)

MOE_LAYER = Entry(
    value=MoeLayer(f"{FUSED_MOE}.runner.moe_runner:MoERunner", "routed_experts.quant_method"),
    symbol="vllm/model_executor/layers/fused_moe/runner/moe_runner.py MoERunner",
    needs=(
        Need(
            f"{FUSED_MOE}.runner.moe_runner:MoERunner",
            "class",
            "a MoE layer, in static_forward_context",
        ),
        *(
            Need(f"{FUSED_MOE}.runner.moe_runner:MoERunner.{name}", "attribute", why)
            for name, why in (
                ("layer_name", "its calls are counted under this name"),
                ("routed_experts", "holds the weights and the method"),
            )
        ),
        Need(
            f"{FUSED_MOE}.routed_experts:RoutedExperts.layer_name",
            "attribute",
            "its calls are counted under this name",
        ),
        Need(
            f"{FUSED_MOE}.routed_experts:RoutedExperts.quant_method",
            "attribute",
            "the layer's quantisation method",
        ),
    ),
    first="0.24.0",
    last=None,
    goes="never: it is what the newest release has",
)

MOE_REPLACED = Entry(
    value=Replaced(
        symbol=f"{FUSED_MOE}.routed_experts:RoutedExperts",
        registered="routed_experts",
        methods=("forward_modular", "forward_monolithic"),
        given=("x", 0),
        layer_name="layer_name",
    ),
    symbol="vllm/model_executor/layers/fused_moe/routed_experts.py RoutedExperts",
    needs=(
        Need(
            f"{FUSED_MOE}.routed_experts:RoutedExperts",
            "class",
            "replaced by a subclass, under this class's name",
            bases=("PluggableLayer",),
            decorator="routed_experts",
        ),
        Need(
            f"{FUSED_MOE}.routed_experts:RoutedExperts.layer_name",
            "attribute",
            "its calls are counted under this name",
        ),
        *(
            Need(
                f"{FUSED_MOE}.routed_experts:RoutedExperts.{name}",
                "method",
                "overridden in the subclass",
                ("self", "x", ANY),
            )
            for name in ("forward_modular", "forward_monolithic")
        ),
    ),
    first="0.24.0",
    last=None,
    goes="never: it is what the newest release has",
)

MOE_ON_CPU = Entry(
    value="modular_kernel",
    symbol="vllm/model_executor/layers/fused_moe/experts/cpu_moe.py CPUUnquantizedExperts",
    needs=(
        Need(
            f"{FUSED_MOE}.experts.cpu_moe:CPUUnquantizedExperts",
            "class",
            "a CPU's experts go by the modular kernel",
            bases=("FusedMoEExpertsModular",),
        ),
    ),
    first="0.30.0",
    last=None,
    goes="never: it is what the newest release has",
)

SHIM = Shim(
    name="main",
    first=(0, 30),
    common=COMMON,
    kernel_init=KERNEL_INIT,
    moe_layer=MOE_LAYER,
    moe_replaced=MOE_REPLACED,
    moe_on_cpu=MOE_ON_CPU,
)
