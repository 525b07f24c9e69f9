"""vLLM 0.24 to 0.29: a CPU's MoE does not go by the modular kernel."""

from __future__ import annotations

from dataclasses import replace

from infera_compat.contracts import Need
from infera_shims import main
from infera_shims.needs import FUSED_MOE
from infera_shims.shim import Entry

# Until 0.27 the method runs cpu_fused_moe, routing included; in 0.28 and 0.29 a monolithic kernel.
# 0.30 made all experts of a CPU modular at once, so any of them tells.
MOE_ON_CPU = Entry(
    value="register_oot",
    symbol="vllm/model_executor/layers/fused_moe/experts/cpu_moe.py CPUExpertsFp8",
    needs=(
        Need(
            f"{FUSED_MOE}.experts.cpu_moe:CPUExpertsFp8",
            "class",
            "a CPU's experts are monolithic: they route too",
            bases=("FusedMoEExpertsMonolithic",),
        ),
    ),
    first="0.22.0",
    last="0.29.0",
    goes="when 0.29 is no longer supported",
)

SHIM = replace(main.SHIM, name="v0_24", first=(0, 24), moe_on_cpu=MOE_ON_CPU)
