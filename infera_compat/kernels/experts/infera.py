"""infera_experts: the experts of a MoE layer in Triton, for GPUs of NVIDIA and AMD.

Few tokens go through decode.py, more are sorted (align.py), multiplied (gemm.py) and summed
(combine.py). Which, and in which tiles, depends on a layer's sizes and the number of tokens alone:
configs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton

from infera_compat.kernels.experts import configs, sources
from infera_compat.kernels.experts.contract import (
    ACTIVATIONS,
    ExpertsCall,
    ExpertsKernel,
    ExpertsSizes,
    ExpertsSpec,
)
from infera_compat.kernels.experts.launches import EIGHT, launch
from infera_compat.kernels.experts.plans import Few, Plan, bucket, buckets
from infera_compat.kernels.experts.scratch import Sorting, few_bytes
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.store import Store

DTYPES = (torch.bfloat16, torch.float16)
OLDEST = (8, 0)
"""The first compute capability with bfloat16 in its tensor cores."""
MOST_EXPERTS = 1023
"""A histogram has a bin for each, and one more: more of them are more than a program can hold."""


def interpreted() -> bool:
    """Whether Triton interprets its functions, on any device (TRITON_INTERPRET)."""
    return bool(triton.knobs.runtime.interpret)


def gpu_of(device: str | torch.device) -> str:
    """The name under which a device's plans are kept."""
    kind = torch.device(device)
    return str(torch.cuda.get_device_name(kind)) if kind.type == "cuda" else kind.type


class InferaExperts(ExpertsKernel):
    """Gated experts of bfloat16 or float16."""

    name = "infera_experts"

    def __init__(self) -> None:
        """Plans are looked up once a layer and bucket."""
        self._plans: dict[tuple[ExpertsSpec, int], Plan] = {}

    def supports(self, spec: ExpertsSpec) -> Reason | None:
        """All but float32, sizes that are no multiples of eight, and devices without Triton."""
        if spec.device != "cuda" and not interpreted():
            return Reason(f"device {spec.device}", "a GPU (or TRITON_INTERPRET=1, to look at it)")
        if spec.capability is not None and spec.capability < OLDEST:
            found = ".".join(map(str, spec.capability))
            return Reason(f"compute capability {found}", f"{'.'.join(map(str, OLDEST))} or later")
        if spec.dtype not in DTYPES:
            return Reason(f"{spec.dtype}", "bfloat16 or float16")
        if spec.activation not in ACTIVATIONS:
            return Reason(f"activation {spec.activation}", f"one of {', '.join(ACTIVATIONS)}")
        for what, size in (("hidden", spec.hidden), ("intermediate", spec.intermediate)):
            if size % EIGHT:
                return Reason(f"{what} size {size}", f"a multiple of {EIGHT}")
        if spec.experts > MOST_EXPERTS:
            return Reason(f"{spec.experts} experts", f"{MOST_EXPERTS} at most")
        return None

    def plan(self, spec: ExpertsSpec, of: int) -> Plan:
        """How the calls of a bucket are run."""
        key = (spec, of)
        if key not in self._plans:
            self._plans[key] = configs.plan(spec, of, gpu_of(spec.device))
        return self._plans[key]

    def workspace(self, spec: ExpertsSpec, sizes: ExpertsSizes) -> int:
        """Sorted pairs and tiles; for few tokens their activations."""
        *smaller, last = buckets(sizes.tokens)
        return max(
            self._bytes(spec, last, sizes.tokens), *(self._bytes(spec, of, of) for of in smaller), 0
        )

    def _bytes(self, spec: ExpertsSpec, of: int, tokens: int) -> int:
        plan = self.plan(spec, of)
        if isinstance(plan, Few):
            return few_bytes(spec, tokens)
        return Sorting.of(spec, of, tokens, plan.rows).bytes(spec.experts)

    def counters(self, spec: ExpertsSpec, sizes: ExpertsSizes) -> int:
        """Of the launches that sum by themselves, one for each of their column tiles."""
        plans = [self.plan(spec, of) for of in buckets(sizes.tokens)]
        merged = [it.down.columns for it in plans if isinstance(it, Few) and it.merge]
        return max((-(-spec.hidden // columns) for columns in merged), default=0)

    def warm_up(
        self, spec: ExpertsSpec, sizes: ExpertsSizes, device: torch.device, store: Store
    ) -> None:
        """Launch each plan once on a call that has nothing to do."""
        for of in buckets(sizes.tokens):
            plan = self.plan(spec, of)
            launch(sources.idle(spec, of, plan, device), plan, of)

    def run(self, call: ExpertsCall) -> None:
        """By the bucket of the call's tokens."""
        tokens = call.hidden_states.shape[0]
        if tokens:
            of = bucket(tokens)
            launch(call, self.plan(call.spec, of), of)

    def compiles_for(self) -> Iterator[tuple[Any, dict[str, str], dict[str, Any]]]:
        """What verify compiles for GPUs that are not here."""
        return sources.all_of_them()


KERNEL = InferaExperts()
