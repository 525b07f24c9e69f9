"""vLLM 0.22: FusedMoEKernel takes one parameter more."""

from __future__ import annotations

from dataclasses import replace

from infera_shims import main, v0_23

FIRST_KERNEL = main.MODULAR_KERNEL[0]

SHIM = replace(
    v0_23.SHIM,
    name="v0_22",
    first=(0, 22),
    needs=tuple(
        replace(need, parameters=(*(need.parameters or ()), "inplace"))
        if need is FIRST_KERNEL
        else need
        for need in v0_23.SHIM.needs
    ),
)
