"""A kernel as an op of torch.library, so that a compiled graph can hold it.

An op's arguments are the fields of its Call, in order, and the layer's spec as a JSON string: text
is still right when the graph is loaded by another process. The schema is made from the contract, so
there is no second list of arguments to keep in step.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from infera_compat.kernels.attention.contract import AttentionCall, AttentionSpec
from infera_compat.kernels.experts.contract import ExpertsCall, ExpertsSpec
from infera_compat.kernels.kernel import ATTENTION, EXPERTS, MLA_DECODE, Kernel
from infera_compat.kernels.mla_decode.contract import MlaDecodeCall, MlaDecodeSpec

NAMESPACE = "infera_compat"


@dataclass(frozen=True)
class OpTypes:
    """What an op's calls are made of. mutated: the fields of a call that `run` writes."""

    spec: type[Any]
    call: type[Any]
    mutated: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The fields of a call that are arguments of the op: all but the spec, in order."""
        return tuple(f.name for f in dataclasses.fields(self.call) if f.name != "spec")


OP_TYPES: Mapping[str, OpTypes] = {
    ATTENTION: OpTypes(AttentionSpec, AttentionCall, ("out", "workspace", "counters")),
    MLA_DECODE: OpTypes(MlaDecodeSpec, MlaDecodeCall, ("out", "lse", "workspace", "counters")),
    EXPERTS: OpTypes(
        ExpertsSpec, ExpertsCall, ("out", "workspace13", "workspace2", "workspace", "counters")
    ),
}

# By a field's annotation in the contract. SymInt: a compiled graph may keep a length open.
SCHEMA_TYPES: Mapping[str, str] = {
    "torch.Tensor": "Tensor{alias}",
    "torch.Tensor | None": "Tensor{alias}?",
    "int": "SymInt",
    "float": "float",
}

_registered: dict[str, Kernel[Any, Any, Any]] = {}
_registering = threading.Lock()
_libraries: list[torch.library.Library] = []  # an op is gone when its library is collected


def schema(name: str, types: OpTypes) -> str:
    """The op's schema as torch.library reads it, without the namespace."""
    aliases = {field: f"(a{number}!)" for number, field in enumerate(types.mutated)}
    annotations = {field.name: str(field.type) for field in dataclasses.fields(types.call)}
    arguments = [
        f"{SCHEMA_TYPES[annotations[field]].format(alias=aliases.get(field, ''))} {field}"
        for field in types.arguments
    ]
    return f"{name}({', '.join(arguments)}, str spec) -> ()"


def _text(names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    plain = (_name(value) if isinstance(value, torch.dtype) else value for value in values)
    return json.dumps(dict(zip(names, plain, strict=True)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Dynamo traces no json, and torch 2.11's hands over no frozen dataclass: hence a function of the
# values, run while a graph is traced. Its result stays true, since the values are guarded.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constant_text(names: tuple[str, ...], *values: Any) -> str:
    return _text(names, values)


def _fixed(value: Any) -> Any:
    """The value itself. Dynamo may have made a number of a spec symbolic, and to hash it is to fix
    it to what it is, with a guard."""
    if isinstance(value, tuple):
        return tuple([_fixed(part) for part in value])
    (only,) = {value}
    return only


@functools.cache
def encode(spec: Any) -> str:
    """A spec as JSON, its fields by name and dtypes by theirs ("bfloat16")."""
    names = tuple(field.name for field in dataclasses.fields(spec))
    return _text(names, tuple(getattr(spec, name) for name in names))


@functools.cache
def decode(op: str, text: str) -> Any:
    """The spec of an op that `encode` wrote: equal to it, and one object for each text."""
    spec_type = OP_TYPES[op].spec
    dtypes = {f.name for f in dataclasses.fields(spec_type) if f.type == "torch.dtype"}
    values = {
        name: getattr(torch, value)
        if name in dtypes
        else tuple(value)
        if isinstance(value, list)
        else value
        for name, value in json.loads(text).items()
    }
    return spec_type(**values)


def as_op(kernel: Kernel[Any, Any, Any]) -> Callable[[Any], None]:
    """A function that runs a kernel's calls through `torch.ops.infera_compat.<kernel.name>`.

    The op is registered the first time. ValueError: the name belongs to another kernel, or is none
    that an op can have.
    """
    types = OP_TYPES[kernel.op]
    with _registering:
        holder = _registered.get(kernel.name)
        if holder is None:
            _register(kernel, types)
            _registered[kernel.name] = kernel
        elif holder is not kernel:
            raise ValueError(
                f"two kernels are called {kernel.name!r}: {_origin(holder)} and {_origin(kernel)}"
            )
    overload = getattr(getattr(torch.ops, NAMESPACE), kernel.name).default
    arguments, names = types.arguments, tuple(f.name for f in dataclasses.fields(types.spec))

    def run(call: Any) -> None:
        if torch.compiler.is_compiling():
            spec = _constant_text(names, *[_fixed(getattr(call.spec, name)) for name in names])
        else:
            spec = encode(call.spec)
        overload(*[getattr(call, name) for name in arguments], spec)

    return run


def _origin(kernel: Kernel[Any, Any, Any]) -> str:
    return f"{type(kernel).__qualname__} of {type(kernel).__module__}"


def _register(kernel: Kernel[Any, Any, Any], types: OpTypes) -> None:
    if not kernel.name.isidentifier():
        raise ValueError(
            f"{_origin(kernel)} is called {kernel.name!r}, expected letters, digits and underscores"
        )

    def run(*values: Any) -> None:
        *arguments, spec = values
        fields = dict(zip(types.arguments, arguments, strict=True))
        kernel.run(types.call(spec=decode(kernel.op, spec), **fields))

    def fake(*values: Any) -> None:
        return  # nothing is returned: what a call writes is given to it

    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(schema(kernel.name, types), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(kernel.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{kernel.name}", fake, lib=library)
    _libraries.append(library)
