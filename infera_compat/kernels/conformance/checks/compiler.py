"""The kernel as an op of torch.library: what torch.compile and its tools make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from infera_compat.kernels import ops
from infera_compat.kernels.conformance import buffers
from infera_compat.kernels.conformance.outcome import Trial, raised
from infera_compat.kernels.conformance.subject import Subject

BACKENDS = {"cpu": "aot_eager", "cuda": "inductor"}
"""On a CPU without Inductor, which would need a C++ compiler."""


def opcheck(subject: Subject) -> Iterator[Trial]:
    """By torch.library.opcheck: schema, fake implementation, and tracing with open shapes."""
    ops.as_op(subject.kernel)
    overload = getattr(getattr(torch.ops, ops.NAMESPACE), subject.kernel.name).default
    names = ops.OP_TYPES[subject.kernel.op].arguments
    for case in subject.made(subject.cases.simple()):
        for it in (buffers.outputs(case.call) | buffers.scratch(case.call)).values():
            buffers.memory(it).zero_()
        arguments = [getattr(case.call, name) for name in names]
        done = torch.library.opcheck(
            overload, (*arguments, ops.encode(case.call.spec)), raise_exception=False
        )
        failed = [f"{test}: {text}" for test, text in done.items() if text != "SUCCESS"]
        yield Trial(case.name, " ".join("; ".join(failed).split()) or None)


def fake(subject: Subject) -> Iterator[Trial]:
    """With fake tensors the op runs, and returns what it does with real ones."""
    step: Any = ops.as_op(subject.kernel)
    for case in subject.made(subject.cases.simple()):
        with FakeTensorMode() as mode:
            fakes = {n: mode.from_tensor(it) for n, it in buffers.tensors(case.call).items()}
            shapes = {name: _shape(it) for name, it in fakes.items()}
            returned = step(replace(case.call, **fakes))
        yield Trial(case.name, _wrong_fake(returned, fakes, shapes))


def _wrong_fake(returned: Any, fakes: dict[str, Any], shapes: dict[str, Any]) -> str | None:
    if returned is not None:
        return f"the fake implementation returns {type(returned).__name__}, the op nothing"
    moved = [name for name, it in fakes.items() if _shape(it) != shapes[name]]
    return f"the fake implementation changed the shape of {', '.join(moved)}" if moved else None


def _shape(tensor: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def compile(subject: Subject) -> Iterator[Trial]:
    """Inside torch.compile(fullgraph=True) there is no graph break, and the result is right."""
    backend = BACKENDS[subject.device.type]
    for case in subject.made(subject.cases.simple()):
        torch._dynamo.reset()
        layer = _layer(subject, case.call)
        compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
        try:
            results = compiled(buffers.tensors(case.call))
        except Exception as error:  # noqa: BLE001 (Dynamo, Inductor and the kernel may raise anything)
            yield Trial(case.name, raised(error))
            continue
        subject.wait()
        yield subject.compared(replace(case, call=replace(case.call, **results)))
    torch._dynamo.reset()


def _layer(subject: Subject, call: Any) -> Callable[[dict[str, torch.Tensor]], Any]:
    """A function that makes a call as an adapter does, with outputs of its own."""
    step = ops.as_op(subject.kernel)
    kind, spec, outputs = type(call), call.spec, tuple(buffers.outputs(call))
    names = ops.OP_TYPES[subject.kernel.op].arguments
    plain = {name: getattr(call, name) for name in names if name not in buffers.tensors(call)}

    def layer(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        made = {name: torch.full_like(given[name], torch.nan) for name in outputs}
        step(kind(spec=spec, **plain, **{**given, **made}))
        return {name: it + 0 for name, it in made.items()}  # something follows in the graph

    return layer
