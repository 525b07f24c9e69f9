"""What `run` launches, shown without a call: to warm up, and to compile for other GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from infera_compat.kernels.experts import across, align, combine, decode, gemm, heuristics
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsSpec
from infera_compat.kernels.experts.plans import Few, Plan, Sorted, Tile
from infera_compat.kernels.experts.scratch import Sorting, few_bytes, power_of_two

Source = tuple[Any, dict[str, str], dict[str, Any]]

TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
NUMBERS = ("pairs", "words", "blocks", "most", "row", "hidden_step", "expert_step", "row_step")
INTEGERS = (
    "ids", "expert_map", "counts", "cursors", "order", "tiles", "total", "counters",
)  # fmt: skip


def idle(spec: ExpertsSpec, bucket: int, plan: Plan, device: torch.device) -> ExpertsCall:
    """A call of one token that goes to no expert, so that its weights can be small."""
    like: dict[str, Any] = {"dtype": spec.dtype, "device": device}
    narrow, wide = (max(size, spec.hidden) for size in (spec.intermediate, 2 * spec.intermediate))
    columns = 1
    if isinstance(plan, Few):
        count = few_bytes(spec, 1)
        columns = -(-spec.hidden // plan.down.columns)
    else:
        count = Sorting.of(spec, bucket, 1, plan.rows).bytes(spec.experts)
    numbers = {"dtype": torch.int32, "device": device}
    return ExpertsCall(
        spec=spec,
        hidden_states=torch.zeros(1, spec.hidden, **like),
        w13=torch.zeros(1, 1, spec.hidden, **like),
        w2=torch.zeros(1, 1, spec.intermediate, **like),
        topk_weights=torch.zeros(1, spec.top_k, dtype=torch.float32, device=device),
        topk_ids=torch.full((1, spec.top_k), -1, **numbers),
        out=torch.empty(1, spec.hidden, **like),
        workspace13=torch.empty(spec.top_k * narrow, **like),
        workspace2=torch.empty(spec.top_k * wide, **like),
        expert_map=torch.full((1,), -1, **numbers) if spec.mapped else None,
        workspace=torch.empty(count, dtype=torch.uint8, device=device),
        counters=torch.zeros(columns, **numbers),
    )


def all_of_them() -> Iterator[Source]:
    """Each function for a layer like Qwen3 30B A3B's, and for its smallest tiles."""
    for dtype, activation in ((torch.bfloat16, "silu"), (torch.float16, "gelu_tanh")):
        spec = ExpertsSpec(128, 256, 2048, 768, 8, dtype, activation, mapped=dtype == torch.float16)
        for bucket in (1, 16384) if activation == "silu" else (32, 64):
            yield from of_plan(spec, bucket, heuristics.plan(spec, bucket))
    gelu = ExpertsSpec(8, 8, 96, 40, 1, torch.bfloat16, "gelu", weights_on_input=True)
    yield from of_plan(gelu, 64, heuristics.plan(gelu, 64))


def of_plan(
    spec: ExpertsSpec, bucket: int, plan: Plan, tma: bool = False, early: bool = False
) -> Iterator[Source]:
    """The functions of one plan. tma: weights by descriptors. early: launches that overlap."""
    if isinstance(plan, Few):
        yield from _few(spec, bucket, plan, early)
        if not plan.merge:
            yield _combine(spec, early)
        return
    yield from _sorted(spec, bucket, plan, tma, early)
    yield _combine(spec, early)


def _source(function: Any, spec: ExpertsSpec, values: dict[str, Any], **types: str) -> Source:
    """The signature of a function. types: of parameters that are none of the usual."""
    signature = {}
    for name in function.arg_names:
        if name in values:
            signature[name] = "constexpr"
        elif name in types:
            signature[name] = types[name]
        elif name in INTEGERS:
            signature[name] = "*i32"
        elif name == "weights":
            signature[name] = "*fp32"
        elif name.endswith("_step") or name in NUMBERS:
            signature[name] = "i32"
        else:
            signature[name] = f"*{TYPES[spec.dtype]}"
    return function, signature, values


def _absent(spec: ExpertsSpec) -> dict[str, None]:
    """Arguments that such a layer has not."""
    absent: dict[str, None] = {} if spec.mapped else {"expert_map": None}
    return absent | ({"weights": None} if spec.weights_on_input else {})


def _within(function: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in function.arg_names}


def _constants(spec: ExpertsSpec, early: bool) -> dict[str, Any]:
    return {
        "HIDDEN": spec.hidden,
        "INTERMEDIATE": spec.intermediate,
        "TOP_K": spec.top_k,
        "CHOICES": power_of_two(spec.top_k),
        "ACTIVATION": spec.activation,
        "MAPPED": spec.mapped,
        "WEIGHTED": not spec.weights_on_input,
        "EARLY": early,
        **_absent(spec),
    }


def _tile(tile: Tile) -> dict[str, Any]:
    return {
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "GROUP": tile.group,
        "ACROSS": tile.across,
        "FLATTEN": tile.per_sm > 0,
    }


def _few(spec: ExpertsSpec, bucket: int, plan: Few, early: bool) -> Iterator[Source]:
    constants = _constants(spec, early) | {
        "TOKENS": max(16, bucket),
        "BY_PAIR": bucket * spec.top_k < spec.experts,
        "MERGE": plan.merge,
        "LINES": plan.lines,
    }
    if not plan.merge:
        constants["counters"] = None
    for function, tile in ((decode.gate_up_few, plan.gate_up), (decode.down_few, plan.down)):
        yield _source(function, spec, _within(function, constants | _tile(tile)))


def _sorted(
    spec: ExpertsSpec, bucket: int, plan: Sorted, tma: bool, early: bool
) -> Iterator[Source]:
    sorting = Sorting.of(spec, bucket, bucket, plan.rows)
    constants = _constants(spec, early) | {
        "BLOCK": sorting.block,
        "BINS": sorting.bins,
        "ROWS": plan.rows,
        "ALONE": bucket * spec.top_k <= sorting.block,
        "COUNTS": 32,
        "TILES": 16,
        "TMA": tma,
    }
    for function in (align.count, align.place):
        yield _source(function, spec, _within(function, constants))
    kind = TYPES[spec.dtype]
    for function, weights, tile in (
        (gemm.gate_up, "w13", plan.gate_up),
        (across.down_across if plan.down.across else gemm.down, "w2", plan.down),
    ):
        types = {}
        if tma:
            types = {weights: f"tensordesc<{kind}[1, {tile.columns}, {tile.depth}]>"}
            if weights == "w2":
                types["inner"] = f"tensordesc<{kind}[{plan.rows}, {tile.depth}]>"
        yield _source(function, spec, _within(function, constants | _tile(tile)), **types)


def _combine(spec: ExpertsSpec, early: bool) -> Source:
    constants = _constants(spec, early) | {"BLOCK": min(1024, power_of_two(spec.hidden))}
    function = combine.combine
    return _source(function, spec, _within(function, constants))
