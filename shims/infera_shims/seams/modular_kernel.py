"""MoE by the modular kernel: an instance's `apply`, on the stock experts object.

Upstream: vllm/model_executor/layers/fused_moe/modular_kernel.py `FusedMoEKernel.__init__` (every
release; a third parameter `inplace` in 0.22) and `FusedMoEExpertsModular.apply` (the same fifteen
parameters in every release). Routing, quantisation, tensor and expert parallelism stay vLLM's.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_shims.needs import FUSED_MOE
from infera_shims.seams import owners, shadowed
from infera_shims.seams.fired import Witness, open_book

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_compat.ledger import Ledger
    from infera_shims.shim import Shim

MODULE = f"{FUSED_MOE}.modular_kernel"
NAME = "modular_kernel"


def bind(binding: Binding, shim: Shim) -> None:
    """Hook the kernel's constructor once vLLM imports it (a second; dense models never do)."""
    binding.once_imported(MODULE, _hook)


def _hook(module: ModuleType, binding: Binding) -> None:
    open_book(binding.ledger)
    kernel_class = module.FusedMoEKernel
    stock = kernel_class.__init__
    other = owners.other(stock)
    if other:
        binding.choice.notes.append(f"FusedMoEKernel.__init__ is wrapped by {other} too")

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        # A kernel that can't be shadowed must not lose a model: the op goes back to stock.
        with binding:
            if binding.choice.kernel and type(self.impl) is module.FusedMoEKernelModularImpl:
                shadow(self.impl.fused_experts, binding)

    binding.originals.replace(kernel_class, "__init__", __init__)


class Shadow:
    """Our `apply` on one experts object, over whatever `apply` it had (another plugin's too)."""

    def __init__(self, stock: Any, ledger: Ledger) -> None:
        """Stand before `stock`, which has FusedMoEExpertsModular.apply's fifteen parameters."""
        self.stock = stock
        self.witness = Witness("moe", ledger)

    def __call__(
        self,
        output: Any,
        hidden_states: Any,
        w1: Any,
        w2: Any,
        topk_weights: Any,
        topk_ids: Any,
        activation: Any,
        global_num_experts: Any,
        expert_map: Any,
        a1q_scale: Any,
        a2_scale: Any,
        workspace13: Any,
        workspace2: Any,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: Any,
        **more: Any,
    ) -> Any:
        """Count, and run stock's apply; returns what stock returns (0.31 on: not always None)."""
        self.witness.fired(hidden_states)
        return self.stock(
            output=output,
            hidden_states=hidden_states,
            w1=w1,
            w2=w2,
            topk_weights=topk_weights,
            topk_ids=topk_ids,
            activation=activation,
            global_num_experts=global_num_experts,
            expert_map=expert_map,
            a1q_scale=a1q_scale,
            a2_scale=a2_scale,
            workspace13=workspace13,
            workspace2=workspace2,
            expert_tokens_meta=expert_tokens_meta,
            apply_router_weight_on_input=apply_router_weight_on_input,
            **more,
        )


def shadow(experts: Any, binding: Binding) -> None:
    """Put a Shadow on `experts`, once."""
    if shadowed.on(experts, Shadow) is None:
        ours = Shadow(experts.apply, binding.ledger)
        shadowed.put(experts, "apply", ours, binding.originals)


def of(method: Any) -> Shadow | None:
    """The shadow on the experts object of a layer's quantisation method, or None."""
    kernel = method.moe_kernel
    return None if kernel is None else shadowed.on(kernel.impl.fused_experts, Shadow)
