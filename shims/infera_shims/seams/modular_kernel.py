"""MoE by the modular kernel: an instance's `apply`, on the stock experts object.

Upstream: vllm/model_executor/layers/fused_moe/modular_kernel.py `FusedMoEKernel.__init__` (every
release; a third parameter `inplace` in 0.22) and `FusedMoEExpertsModular.apply` (the same fifteen
parameters in every release). Routing, quantisation, tensor and expert parallelism stay vLLM's.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_shims.needs import FUSED_MOE
from infera_shims.seams import owners, shadowed
from infera_shims.seams.fired import Witness, open_book

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_compat.kernels.experts.contract import ExpertsSpec
    from infera_shims.shim import Shim

MODULE = f"{FUSED_MOE}.modular_kernel"
NAME = "modular_kernel"
PACK = "process_weights_after_loading"


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
    """Our `apply` on one experts object, over whatever `apply` it had (another plugin's too).

    spec: what a kernel was told of the layer that it takes. unpacked: whether the weights were left
    so for it, so that no call may be stock's.
    """

    def __init__(self, experts: Any, binding: Binding) -> None:
        """Stand before an apply that has FusedMoEExpertsModular.apply's fifteen parameters."""
        self.stock = experts.apply
        self.witness = Witness("moe", binding.ledger)
        self.spec: ExpertsSpec | None = None
        self.unpacked = False
        self._adapter: Any = binding.adapter
        self._experts = weakref.ref(experts)

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
        """Run the kernel, or count and run stock's apply.

        Returns what stock returns (0.31 on: not always None); a kernel has written `output`.
        """
        call = {
            "output": output,
            "hidden_states": hidden_states,
            "w1": w1,
            "w2": w2,
            "topk_weights": topk_weights,
            "topk_ids": topk_ids,
            "activation": activation,
            "global_num_experts": global_num_experts,
            "expert_map": expert_map,
            "a1q_scale": a1q_scale,
            "a2_scale": a2_scale,
            "workspace13": workspace13,
            "workspace2": workspace2,
            "expert_tokens_meta": expert_tokens_meta,
            "apply_router_weight_on_input": apply_router_weight_on_input,
        }
        if self._adapter is None:
            self.witness.fired(hidden_states)
        elif self.spec is not None:
            experts, name = self._experts(), self.witness.layer
            if not more and self._adapter.takes(name, self.spec, experts, call):
                self.witness.fired(hidden_states)
                self._adapter.run(self.spec, call)
                return None
            if self.unpacked:
                raise RuntimeError(
                    f"infera-compat: the weights of {name} were kept for "
                    f"{self._adapter.kernel.name}, and this call is not for it. INFERA_MOE=off "
                    "serves it."
                )
            self._adapter.ledger.hand_over("moe", name)
        return self.stock(**call, **more)


class Unpacked:
    """Our stand-in for the step that packs a CPU layer's weights once they are loaded."""

    def __init__(self, experts: Any, apply: Shadow, binding: Binding) -> None:
        """Stand before the experts' own step."""
        self.stock = experts.process_weights_after_loading
        self._adapter: Any = binding.adapter
        self._experts, self._apply = weakref.ref(experts), apply

    def __call__(self, layer: Any) -> None:
        """Leave the weights as they are where the kernel takes the layer, else pack them."""
        spec = self._adapter.keep_unpacked(self._experts(), layer)
        if spec is None:
            self.stock(layer)
        else:
            self._apply.spec, self._apply.unpacked = spec, True


def shadow(experts: Any, binding: Binding) -> None:
    """Put a Shadow on `experts`, once; with a kernel, one on the packing of its weights too."""
    if shadowed.on(experts, Shadow) is not None:
        return
    ours = Shadow(experts, binding)
    shadowed.put(experts, "apply", ours, binding.originals)
    if binding.adapter is not None and hasattr(experts, PACK):
        shadowed.put(experts, PACK, Unpacked(experts, ours, binding), binding.originals)


def of(method: Any) -> Shadow | None:
    """The shadow on the experts object of a layer's quantisation method, or None."""
    kernel = method.moe_kernel
    return None if kernel is None else shadowed.on(kernel.impl.fused_experts, Shadow)
