"""The experts of a MoE layer: two gated matrix products an expert, weighted and summed a token.

Routing comes before, and the sum over ranks after: a call reduces nothing across ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infera_compat.kernels.kernel import EXPERTS, Kernel

if TYPE_CHECKING:
    import torch

SILU, GELU, GELU_TANH = "silu", "gelu", "gelu_tanh"
ACTIVATIONS = (SILU, GELU, GELU_TANH)


@dataclass(frozen=True)
class ExpertsSpec:
    """What is known of a layer before it runs.

    experts: experts whose weights this rank holds. global_experts: experts of the layer.
    hidden: K, channels of a token. intermediate: N, this rank's share of an expert's inner size.
    top_k: experts a token. dtype: element type of hidden states, weights and out.
    activation: one of ACTIVATIONS, of the gate. mapped: whether an expert_map comes with a call.
    weights_on_input: whether the router's weights were applied to the hidden states already, so
        that the kernel applies none.
    device, capability: as AttentionSpec's.
    """

    experts: int
    global_experts: int
    hidden: int
    intermediate: int
    top_k: int
    dtype: torch.dtype
    activation: str = SILU
    mapped: bool = False
    weights_on_input: bool = False
    device: str = "cuda"
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class ExpertsSizes:
    """The most that a call may hold.

    tokens: tokens of a call. captured: as AttentionSizes'.
    """

    tokens: int
    captured: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExpertsCall:
    """One layer, one step, on the layer's device: M tokens, k = spec.top_k.

    spec: the layer.
    hidden_states: [M, K], spec.dtype; never the memory of `out`.
    w13: [experts, 2N, K], spec.dtype: the gate's N rows, then the up projection's.
    w2: [experts, K, N], spec.dtype.
    topk_weights: [M, k], float32. topk_ids: [M, k], int32 or int64, of the layer's experts;
        -1: no expert. Test for -1 before the map is read.
    expert_map: [global experts], int32: the local expert of each, or -1 where another rank has it;
        None: ids are local already.
    out: [M, K], spec.dtype: the sum over a token's local experts, each weighted unless
        spec.weights_on_input. A token without one gets zeros.
    workspace13: scratch of at least M * k * max(N, K) elements of spec.dtype. It may be the very
        memory of `out`.
    workspace2: scratch of at least M * k * max(2N, K) elements, never that of `out`.
    workspace, counters: as AttentionCall's, besides those two.
    """

    spec: ExpertsSpec
    hidden_states: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    out: torch.Tensor
    workspace13: torch.Tensor
    workspace2: torch.Tensor
    expert_map: torch.Tensor | None = None
    workspace: torch.Tensor | None = None
    counters: torch.Tensor | None = None


class ExpertsKernel(Kernel[ExpertsSpec, ExpertsSizes, ExpertsCall]):
    """A kernel for the experts of a MoE layer."""

    op = EXPERTS
