"""Kernels as ops of torch.library: their schemas, specs as text, and compiled graphs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from calls import assert_agrees, attention, experts, mla_decode, poisoned, tensors

from infera_compat.kernels import ops
from infera_compat.kernels.attention import reference as attention_reference
from infera_compat.kernels.attention.contract import (
    AttentionCall,
    AttentionKernel,
    AttentionSpec,
)
from infera_compat.kernels.conformance import expected
from infera_compat.kernels.experts import reference as experts_reference
from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.kernel import OPS, Reason
from infera_compat.kernels.mla_decode import reference as mla_reference
from infera_compat.kernels.mla_decode.contract import MlaDecodeSpec


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel, a call for it, and what it must write there."""

    kernel: Any
    call: Callable[[], Any]
    expected: Callable[[Any], dict[str, torch.Tensor]]


def _mla(call: Any) -> dict[str, torch.Tensor]:
    return dict(zip(("out", "lse"), expected.mla_decode(call), strict=True))


CASES = {
    "attention": Case(
        attention_reference.KERNEL,
        lambda: attention([1, 5, 2], [20, 5, 33], ratio=2, window=8, soft_cap=3.5, sinks=True),
        lambda call: {"out": expected.attention(call)},
    ),
    "attention, plain": Case(
        attention_reference.KERNEL,
        lambda: attention([1, 5, 2], [20, 5, 33], padding=2, layout="BHN2D"),
        lambda call: {"out": expected.attention(call)},
    ),
    "mla_decode": Case(mla_reference.KERNEL, lambda: mla_decode([20, 0, 33], 2), _mla),
    "experts": Case(
        experts_reference.KERNEL,
        lambda: experts(12, world=2),
        lambda call: {"out": expected.experts(call)},
    ),
    "experts, all": Case(
        experts_reference.KERNEL,
        lambda: experts(12, activation="gelu", weights_on_input=True),
        lambda call: {"out": expected.experts(call)},
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

SPECS = {
    "attention": AttentionSpec(
        32, 8, 128, torch.bfloat16, torch.float8_e4m3fn, 512, 30.5, True, False, True, 16,
        "cuda", (9, 0),
    ),
    "mla_decode": MlaDecodeSpec(16, 512, 64, torch.float16, torch.uint8, None, True),
    "experts": ExpertsSpec(16, 128, 2048, 768, 8, torch.float32, "gelu", True, capability=(10, 0)),
}  # fmt: skip


@each_case
def test_the_op_writes_what_the_kernel_writes(case: Case) -> None:
    call = case.call()
    ops.as_op(case.kernel)(call)
    for name, right in case.expected(call).items():
        assert_agrees(getattr(call, name), right, torch.float32)


@each_case
def test_opcheck(case: Case) -> None:
    ops.as_op(case.kernel)
    call = case.call()
    arguments = [getattr(call, name) for name in ops.OP_TYPES[case.kernel.op].arguments]
    # opcheck compares what is written with ==, and NaN is unlike itself.
    arguments = [torch.nan_to_num(it) if is_float(it) else it for it in arguments]
    op = getattr(torch.ops.infera_compat, case.kernel.name).default
    torch.library.opcheck(op, (*arguments, ops.encode(call.spec)))


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@each_case
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_graph_holds_it_unbroken(case: Case, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    call, run = case.call(), ops.as_op(case.kernel)
    written = [name for name in ("out", "lse") if name in tensors(call)]
    arguments = ops.OP_TYPES[case.kernel.op].arguments
    plain = {name: getattr(call, name) for name in arguments if name not in tensors(call)}

    def build(values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """As an adapter does: a Call made inside what is compiled."""
        made = {name: torch.full_like(values[name], torch.nan) for name in written}
        run(type(call)(spec=call.spec, **plain, **{**values, **made}))
        return [made[name] + 0 for name in written]

    compiled = torch.compile(build, fullgraph=True, backend=backend, dynamic=dynamic)
    results = compiled(tensors(call))
    for name, result in zip(written, results, strict=True):
        assert_agrees(result, case.expected(call)[name], torch.float32)


def test_inductor_compiles_it() -> None:
    torch._dynamo.reset()
    call, run = attention([1, 5, 2], [20, 5, 33], ratio=2), ops.as_op(attention_reference.KERNEL)

    def step(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = torch.empty(query.shape)
        run(
            AttentionCall(
                spec=call.spec,
                query=query * 1,
                key_cache=keys,
                value_cache=values,
                block_table=call.block_table,
                seq_lens=call.seq_lens,
                query_start_loc=call.query_start_loc,
                max_query_len=call.max_query_len,
                max_seq_len=call.max_seq_len,
                scale=call.scale,
                out=out,
            )
        )
        return out * 2

    compiled = torch.compile(step, fullgraph=True)
    out = compiled(call.query, call.key_cache, call.value_cache) / 2
    assert_agrees(out, expected.attention(call), torch.float32)


def test_layers_that_differ_share_a_compiled_function() -> None:
    """Dynamo makes a number symbolic that was another one the last time; a spec's must not be."""
    torch._dynamo.reset()
    run = ops.as_op(attention_reference.KERNEL)
    between = ops.OP_TYPES["attention"].arguments[1:9]

    @torch.compile(fullgraph=True, backend="eager")
    def step(call: AttentionCall, query: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(query.shape)
        run(AttentionCall(call.spec, query, *[getattr(call, name) for name in between], out))
        return out

    for window in (2, 3, None):
        for cap in (1.5, 2.5):
            call = attention([1, 5, 2], [20, 5, 33], window=window, soft_cap=cap)
            assert_agrees(step(call, call.query), expected.attention(call), torch.float32)


def test_there_are_types_for_every_op() -> None:
    assert set(ops.OP_TYPES) == set(OPS) == set(SPECS)


@pytest.mark.parametrize("op", SPECS)
def test_a_spec_survives_as_text(op: str) -> None:
    text = ops.encode(SPECS[op])
    assert json.loads(text)["dtype"] == str(SPECS[op].dtype).removeprefix("torch.")
    assert ops.decode(op, text) == SPECS[op]
    assert ops.decode(op, text) is ops.decode(op, text)


@pytest.mark.parametrize("op", SPECS)
def test_what_a_call_has_written_is_mutated_in_the_schema(op: str) -> None:
    parsed = torch._C.parse_schema(ops.schema("it", ops.OP_TYPES[op]))
    mutated = {it.name for it in parsed.arguments if it.alias_info and it.alias_info.is_write}
    assert mutated == set(ops.OP_TYPES[op].mutated)
    assert [it.name for it in parsed.arguments] == [*ops.OP_TYPES[op].arguments, "spec"]


class Other(AttentionKernel):
    """A kernel with a name that is taken, or that no op can have."""

    def __init__(self, name: str):
        self.name = name  # type: ignore[misc]

    def supports(self, spec: AttentionSpec) -> Reason | None:
        return None

    def run(self, call: AttentionCall) -> None:
        call.out.zero_()


def test_it_is_registered_once() -> None:
    kernel = Other("registered_once")
    first, second = ops.as_op(kernel), ops.as_op(kernel)
    for run in (first, second):
        call = attention([2], [3])
        run(call)
        assert (call.out == 0).all()


def test_a_name_has_one_holder() -> None:
    ops.as_op(attention_reference.KERNEL)
    with pytest.raises(ValueError, match=r"ReferenceAttention of infera_compat.*Other of test_ops"):
        ops.as_op(Other("reference_attention"))


def test_a_name_that_is_no_identifier() -> None:
    with pytest.raises(ValueError, match="'my-kernel', expected letters"):
        ops.as_op(Other("my-kernel"))


def test_poisoned_is_a_part_of_something_wider() -> None:
    assert not poisoned((4, 3), torch.float32).is_contiguous()
