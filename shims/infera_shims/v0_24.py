"""vLLM 0.24 to 0.29: a CPU's MoE does not go by the modular kernel."""

from __future__ import annotations

from dataclasses import replace

from infera_shims import main
from infera_shims.shim import Entry

# Until 0.27 the method runs cpu_fused_moe, routing included; in 0.28 and 0.29 a monolithic kernel.
MOE_ON_CPU = Entry(
    value="register_oot",
    symbol="vllm/model_executor/layers/fused_moe/experts/cpu_moe.py CPUUnquantizedExperts",
    needs=(),
    first="0.22.0",
    last="0.29.0",
    goes="when 0.29 is no longer supported",
)

SHIM = replace(main.SHIM, name="v0_24", first=(0, 24), moe_on_cpu=MOE_ON_CPU)
