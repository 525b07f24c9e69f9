"""vLLM 0.22: FusedMoEKernel takes one parameter more."""

from __future__ import annotations

from dataclasses import replace

from infera_compat.contracts import Need
from infera_shims import v0_23
from infera_shims.needs import FUSED_MOE
from infera_shims.shim import Entry

KERNEL_INIT = Entry(
    value="inplace",
    symbol="vllm/model_executor/layers/fused_moe/modular_kernel.py FusedMoEKernel.__init__",
    needs=(
        Need(
            f"{FUSED_MOE}.modular_kernel:FusedMoEKernel.__init__",
            "method",
            "every modular kernel is made here",
            ("self", "prepare_finalize", "fused_experts", "inplace"),
        ),
    ),
    first="0.22.0",
    last="0.22.1",
    goes="when 0.22 is no longer supported",
)

SHIM = replace(v0_23.SHIM, name="v0_22", first=(0, 22), kernel_init=KERNEL_INIT)
