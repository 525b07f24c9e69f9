"""The gate's activation times the up projection, in float32."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr):
    """ACTIVATION: as the contract's names them."""
    tl.static_assert(ACTIVATION == "silu" or ACTIVATION == "gelu" or ACTIVATION == "gelu_tanh")
    if ACTIVATION == "gelu":
        passed = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # (1 + tanh(x)) / 2 is the logistic function of 2x: no overflow that is not a right limit.
        inner = gate
        if ACTIVATION == "gelu_tanh":
            inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        passed = gate / (1.0 + tl.exp(-inner))
    return passed * up
