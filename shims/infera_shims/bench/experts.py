"""The experts of one MoE layer: stock's own modular kernel, and the same with a kernel bound in it.

Upstream: vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py, which selects the
experts and makes the kernel as it is done here (oracle/unquantized.py, the same two functions in
every release), with stock's tuned configurations in force. Both
sides are calls of `FusedMoEKernel.apply` on the same weights; ours has the seam's stand-in on its
experts, so that what the host does is in.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import config as moe_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import unquantized
from vllm.v1.worker import workspace

from infera_compat.bench import floors, timing
from infera_compat.bench.cells import EAGER, GRAPH, ExpertsCell
from infera_compat.binding import Binding
from infera_compat.errors import Refused
from infera_compat.kernels.experts.contract import ExpertsKernel
from infera_compat.ledger import SERVING, Calls, Choice, Layer, Ledger
from infera_compat.settings import ALL, Settings
from infera_shims.adapters.experts import PACKED_ON_CPU, PLAIN, ExpertsAdapter
from infera_shims.bench import compared, configured
from infera_shims.bench.compared import Different
from infera_shims.bench.configured import Limits
from infera_shims.engines import weights
from infera_shims.seams import modular_kernel, shadowed

NAME = "model.layers.0.mlp.experts"
OP = "moe"
SETS = 4
"""Inputs that calls rotate over, at least."""
BEYOND_L2 = 4
GAIN = 0.8
"""Of weights, by the root of what they sum over: outputs stay below one, where bfloat16 is fine."""
LAUNCH_US = 20.0
HEADS, HEAD_SIZE = 4, 64
"""Of the model around the layer, which is never made."""


class Rig:
    """One layer's weights, stock's kernel over them, and another one with ours bound in it."""

    def __init__(
        self,
        cell: ExpertsCell,
        kernel: ExpertsKernel,
        source: str,
        settings: Settings,
        folder: Path,
        limits: Limits,
    ) -> None:
        """Draw weights and make the kernels as a worker does once a layer's weights are loaded.

        The arguments are those of bench.attention's Rig, but for the cell: its layer is built.
        Raises Refused where the kernel does not take the layer.
        """
        self.limits, self.device = limits, configured.here()
        shape = dataclasses.replace(
            weights.TINY,
            layers=1,
            hidden=cell.K,
            heads=HEADS,
            kv_heads=HEADS,
            head_size=HEAD_SIZE,
            experts=cell.E,
            top_k=cell.k,
            moe_intermediate=cell.N,
            max_position=limits.seq_len,
        )
        name = cell.layer.replace(" ", "-")
        eager = cell.mode == EAGER
        self.config = configured.configured(
            "qwen3_moe", shape, folder / name, limits, enforce_eager=eager
        )
        with configured.building(self.config, self.device), torch.inference_mode():
            self._moe = _moe(cell, self.config)
            backend, experts = unquantized.select_unquantized_moe_backend(self._moe)
            wanted = PACKED_ON_CPU if configured.on_cpu() else PLAIN
            if experts is None or experts.__name__ != wanted:
                raise Refused(f"vLLM picks {experts} here, expected {wanted}")
            self.layer = _layer(cell, self.config, self.device)
            self.stock_layer = _layer(cell, self.config, self.device) if self._packs() else None
            self.stock, self.ours = (
                unquantized.make_unquantized_moe_kernel(
                    quant_config=moe_config.FUSED_MOE_UNQUANTIZED_CONFIG,
                    moe_config=self._moe,
                    backend=backend,
                    experts_cls=experts,
                )
                for _ in range(2)
            )
            if not _has_workspace():
                workspace.init_workspace_manager(self.device)
            if self.stock_layer is not None:
                self.stock.impl.fused_experts.process_weights_after_loading(self.stock_layer)
        # Tensors are float32 again by default, as where a worker warms up.
        with configured.current(self.config):
            self._bind(kernel, source, settings)

    def _packs(self) -> bool:
        """Whether stock packs its weights here (a CPU), so that each side has its own."""
        return configured.on_cpu()

    def _bind(self, kernel: ExpertsKernel, source: str, settings: Settings) -> None:
        """In the order in which a worker does (infera_compat/install.py)."""
        self.ledger = Ledger()
        self.ledger.phase = SERVING
        choice = Choice(OP, kernel.name, kernel=kernel.name)
        self.ledger.choices[OP] = choice
        over = type(self.ours.impl.fused_experts).__name__
        self.ledger.survey([Layer(OP, NAME, over, seam=modular_kernel.NAME, kernel=kernel.name)])
        self.adapter = ExpertsAdapter(kernel, self.ledger)
        self.adapter.begin(self.config)
        binding = Binding(
            choice, self.ledger, settings, None, _must_not_fall_back, adapter=self.adapter
        )
        experts = self.ours.impl.fused_experts
        modular_kernel.shadow(experts, binding)
        if self._packs():
            experts.process_weights_after_loading(self.layer)
        shadow = shadowed.on(experts, modular_kernel.Shadow)
        if shadow is None:
            raise AssertionError("shadow() puts one there")
        shadow.spec = self.adapter.decide(NAME, experts, self.layer, shadow.spec)
        shadow.witness.layer = NAME
        self.adapter.choose(
            Settings(moe=kernel.name, kernel_table=ALL, cache_dir=settings.cache_dir), source
        )
        self.adapter.reserve()
        began = time.monotonic()
        self.adapter.warm_up()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.warm_up_s = time.monotonic() - began

    @property
    def scratch(self) -> int:
        """Bytes that the kernel had set aside, besides stock's workspaces."""
        reserved = (self.adapter.workspace, self.adapter.counters)
        return sum(each.numel() * each.element_size() for each in reserved if each is not None)

    def run(self, cell: ExpertsCell, timed: bool) -> dict[str, Any]:
        """Compare the two sides on a cell, and time them if that is asked for."""
        with torch.inference_mode():
            work = Work(self, cell)
            found: dict[str, Any] = {"worst_difference": work.compare(), "experts_hit": work.hit}
            if timed:
                found |= work.timed()
        return found


class Work:
    """The inputs of a cell, and the two sides as functions of the number of a call."""

    def __init__(self, rig: Rig, cell: ExpertsCell) -> None:
        """Draw hidden states, and experts for each token that are all alike likely."""
        self._rig, self._cell = rig, cell
        device = rig.device
        draw = torch.Generator(device=device).manual_seed(zlib.crc32(cell.name.encode()) + 1)
        dtype = rig.config.model_config.dtype
        self._inputs = []
        for _ in range(_sets(cell, device)):
            hidden = torch.empty(cell.M, cell.K, dtype=dtype, device=device)
            hidden.normal_(generator=draw)
            logits = torch.empty(cell.M, cell.E, device=device).normal_(generator=draw)
            found, ids = logits.topk(cell.k)
            self._inputs.append((hidden, found.softmax(-1), ids.to(torch.int32)))
        hits = [int(ids.unique().numel()) for _, _, ids in self._inputs]
        self.hit = sum(hits) / len(hits)
        self._outputs: dict[str, torch.Tensor] = {}

    def compare(self) -> float:
        """The largest difference of the two sides' outputs over the inputs."""
        stock, ours = self._sides().values()
        worst = 0.0
        for number in range(min(2, len(self._inputs))):
            stock(number)
            kept = self._outputs["stock"].clone()  # it may be memory that ours writes too
            self._must_be_the_kernels(partial(ours, number))
            worst = max(worst, compared.difference(kept, self._outputs["ours"], self._cell.name))
        return worst

    def timed(self) -> dict[str, Any]:
        """The times of both sides, and what was timed."""
        cell, rig = self._cell, self._rig
        work = floors.of_experts(cell, self.hit)
        guess = LAUNCH_US + max(work.bytes / 4e6, work.flops / 8e8)
        calls = timing.calls_for(len(self._inputs), guess)
        sides = self._sides()
        stretches: dict[str, Callable[[], None]] = {}
        if cell.mode == GRAPH:
            stretches["stock"] = timing.captured(sides["stock"], calls)
            self._must_be_the_kernels(
                lambda: stretches.update(ours=timing.captured(sides["ours"], calls))
            )
            stretches["stock"]()
            kept = self._outputs["stock"].clone()
            stretches["ours"]()
            compared.difference(kept, self._outputs["ours"], f"{cell.name}, replayed")
        else:
            stretches = {name: timing.repeated(side, calls) for name, side in sides.items()}
        times = timing.paired(stretches, calls)
        return {
            "stock_us": times["stock"].median,
            "ours_us": times["ours"].median,
            "stock_quartiles": times["stock"].quartiles,
            "ours_quartiles": times["ours"].quartiles,
            "calls": calls,
            "inputs": len(self._inputs),
            "rounds": timing.ROUNDS,
            "scratch_bytes": rig.scratch,
            "warm_up_s": rig.warm_up_s,
        }

    def _sides(self) -> dict[str, Callable[[int], None]]:
        rig, cell, inputs, count = self._rig, self._cell, self._inputs, len(self._inputs)

        def side(name: str, kernel: Any, layer: Any) -> Callable[[int], None]:
            def call(number: int) -> None:
                hidden, topk_weights, topk_ids = inputs[number % count]
                self._outputs[name] = kernel.apply(
                    hidden_states=hidden,
                    w1=layer.w13_weight,
                    w2=layer.w2_weight,
                    topk_weights=topk_weights,
                    topk_ids=topk_ids,
                    activation=MoEActivation.SILU,
                    global_num_experts=cell.E,
                    expert_map=None,
                    apply_router_weight_on_input=False,
                )

            return call

        return {
            "stock": side("stock", rig.stock, rig.stock_layer or rig.layer),
            "ours": side("ours", rig.ours, rig.layer),
        }

    def _must_be_the_kernels(self, run: Callable[[], Any]) -> None:
        """Run calls of our side; Different where one of them was left to stock."""
        before = self._handed()
        run()
        if self._handed() > before:
            raise Different(f"{self._cell.name}: the step was left to stock")

    def _handed(self) -> int:
        return self._rig.ledger._calls.get((OP, NAME), Calls()).handed


class Bench:
    """The rigs of a run, one at a time: cells of a layer come one after the other."""

    def __init__(self, settings: Settings, folder: Path, limits: Limits) -> None:
        """See Rig."""
        self._settings, self._folder, self._limits = settings, folder, limits
        self._key: tuple[str, ...] | None = None
        self._rig: Rig | None = None

    def measure(
        self, kernel: ExpertsKernel, source: str, cell: ExpertsCell, timed: bool
    ) -> dict[str, Any]:
        """What the record has of a cell; raises Refused and Different."""
        # Inside a CUDA graph or not, the layer is the same one.
        key = kernel.name, cell.layer
        if self._rig is None or self._key != key:
            self.close()
            self._rig = Rig(cell, kernel, source, self._settings, self._folder, self._limits)
            self._key = key
        return self._rig.run(cell, timed)

    def close(self) -> None:
        """Give the rig's memory back."""
        self._rig = self._key = None
        if not configured.on_cpu():
            torch.cuda.empty_cache()


def _moe(cell: ExpertsCell, config: Any) -> Any:
    """The layer's FusedMoEConfig, by the fields that the release's has."""
    cls = moe_config.FusedMoEConfig
    values = {
        "num_experts": cell.E,
        "experts_per_token": cell.k,
        "hidden_dim": cell.K,
        # Of these two a release has one: a rank's share, or the whole that it follows from.
        "intermediate_size": cell.N,
        "intermediate_size_per_partition": cell.N,
        "num_local_experts": cell.E,
        "num_logical_experts": cell.E,
        "activation": MoEActivation.SILU,
        "device": config.device_config.device,
        "routing_method": moe_config.RoutingMethodType.Renormalize,
        "moe_parallel_config": moe_config.FusedMoEParallelConfig.make_no_parallel(),
        "in_dtype": config.model_config.dtype,
        "moe_backend": config.kernel_config.moe_backend,
        "max_num_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_capture_size": config.compilation_config.max_cudagraph_capture_size or 0,
    }
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in names})


def _layer(cell: ExpertsCell, config: Any, device: torch.device) -> Any:
    """What holds the weights: w13 [E, 2N, K], w2 [E, K, N], drawn anew and alike each time."""
    draw = torch.Generator(device=device).manual_seed(zlib.crc32(cell.layer.encode()))
    dtype = config.model_config.dtype

    def drawn(*sizes: int) -> torch.nn.Parameter:
        values = torch.empty(sizes, dtype=dtype, device=device)
        values.normal_(0, GAIN / sizes[-1] ** 0.5, generator=draw)
        return torch.nn.Parameter(values, requires_grad=False)

    layer = torch.nn.Module()
    layer.w13_weight = drawn(cell.E, 2 * cell.N, cell.K)
    layer.w2_weight = drawn(cell.E, cell.K, cell.N)
    layer.expert_map = None
    layer.apply_router_weight_on_input = False
    return layer


def _sets(cell: ExpertsCell, device: torch.device) -> int:
    """How many inputs the calls of a cell rotate over, so that L2 does not hold their weights."""
    if device.type != "cuda":
        return 2
    l2 = int(torch.cuda.get_device_properties(device).L2_cache_size)
    # Tokens of one input go to different experts, at the most.
    work = floors.of_experts(cell, min(cell.E, cell.M * cell.k))
    return max(SETS, -(-BEYOND_L2 * l2 // work.bytes))


def _has_workspace() -> bool:
    return bool(workspace.is_workspace_manager_initialized())


def _must_not_fall_back(choice: Choice, reason: str) -> None:
    raise Refused(f"{choice.op} went back to stock: {reason}")
