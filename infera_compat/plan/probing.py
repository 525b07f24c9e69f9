"""What a kernel supports, asked of `kernel.supports` for a grid of specs: yes, or why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infera_compat.kernels import kernel as kernels
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.experts.contract import ACTIVATIONS, ExpertsSpec
from infera_compat.kernels.kernel import Kernel
from infera_compat.kernels.mla_decode.contract import MlaDecodeSpec

Changes = Mapping[str, Any]
"""Fields of a spec that differ from the base's. Element types are named, "bfloat16" say."""

Dtype = Callable[[str], Any]
"""Makes a named element type. The command line gives torch's: nothing here imports torch."""

DTYPES = ("dtype", "kv_dtype")

SPECS: Mapping[str, Callable[..., Any]] = {
    kernels.ATTENTION: AttentionSpec,
    kernels.MLA_DECODE: MlaDecodeSpec,
    kernels.EXPERTS: ExpertsSpec,
}


@dataclass(frozen=True)
class Case:
    """One value of an aspect. shown: how the page calls it."""

    aspect: str
    shown: str
    changes: Changes


@dataclass(frozen=True)
class Answer:
    """What the kernel said of a case; why_not is None where it takes it."""

    aspect: str
    shown: str
    why_not: str | None


@dataclass(frozen=True)
class Support:
    """All answers of a kernel. around: the base that the cases differ from, or None: none is taken.

    refused: by base, why it was not taken, for those that were asked before `around`.
    """

    around: str | None
    refused: Mapping[str, str]
    answers: tuple[Answer, ...]

    def of(self, aspect: str) -> tuple[Answer, ...]:
        """The answers on one aspect."""
        return tuple(answer for answer in self.answers if answer.aspect == aspect)

    @property
    def aspects(self) -> tuple[str, ...]:
        """All aspects, in the grid's order."""
        return tuple(dict.fromkeys(answer.aspect for answer in self.answers))


DEVICE, TENSOR_PARALLEL, EXPERT_PARALLEL = "device", "TP shard", "EP shard"
KV_DTYPE = "KV cache's element type"
TP_SIZES = (1, 2, 4, 8)

DEVICES = (
    Case(DEVICE, "sm_90", {"device": "cuda", "capability": (9, 0)}),
    Case(DEVICE, "sm_100", {"device": "cuda", "capability": (10, 0)}),
    Case(DEVICE, "sm_80", {"device": "cuda", "capability": (8, 0)}),
    Case(DEVICE, "ROCm", {"device": "cuda", "capability": None}),
    Case(DEVICE, "CPU", {"device": "cpu", "capability": None}),
)


def _each(aspect: str, field: str, *values: Any) -> tuple[Case, ...]:
    return tuple(Case(aspect, str(value), {field: value}) for value in values)


def _heads(aspect: str, *pairs: tuple[str, int, int]) -> tuple[Case, ...]:
    return tuple(
        Case(aspect, f"{name}: {heads}/{kv_heads}", {"heads": heads, "kv_heads": kv_heads})
        for name, heads, kv_heads in pairs
    )


HALVES = ("bfloat16", "float16", "float32")
FP8 = "float8_e4m3fn"
BLOCKS = (8, 16, 32, 48, 64, 128, 256, 544)

BASES: Mapping[str, Changes] = {
    kernels.ATTENTION: {
        "heads": 32,
        "kv_heads": 8,
        "head_size": 128,
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "block_size": 16,
    },
    kernels.MLA_DECODE: {
        "heads": 16,
        "latent": 512,
        "rope": 64,
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "block_size": 64,
    },
    kernels.EXPERTS: {
        "experts": 128,
        "global_experts": 128,
        "hidden": 2048,
        "intermediate": 768,
        "top_k": 8,
        "dtype": "bfloat16",
    },
}

GRID: Mapping[str, tuple[Case, ...]] = {
    kernels.ATTENTION: (
        *DEVICES,
        *(
            Case("element type", name, {"dtype": name, "kv_dtype": name}) for name in HALVES
        ),
        Case(KV_DTYPE, f"{FP8} under bfloat16", {"kv_dtype": FP8}),
        *_each("head size", "head_size", 64, 80, 96, 112, 128, 192, 256),
        *_heads("heads/KV heads", ("MHA", 32, 32), ("GQA", 32, 8), ("MQA", 32, 1)),
        *_each("block size", "block_size", *BLOCKS),
        Case("feature", "causal", {}),
        Case("feature", "not causal", {"causal": False}),
        Case("feature", "window", {"window": 128}),
        Case("feature", "soft cap", {"soft_cap": 30.0}),
        Case("feature", "sinks", {"sinks": True}),
        Case("feature", "ALiBi", {"alibi": True}),
        *_heads(
            TENSOR_PARALLEL,
            *((f"TP {size}", 32 // size, 8 // size) for size in TP_SIZES),
            ("TP 16 with KV heads held twice", 2, 1),
        ),
    ),
    kernels.MLA_DECODE: (
        *DEVICES,
        *(
            Case("element type", name, {"dtype": name, "kv_dtype": name}) for name in HALVES
        ),
        Case(KV_DTYPE, f"{FP8} under bfloat16", {"kv_dtype": FP8}),
        Case("latent + rope", "512 + 64", {"latent": 512, "rope": 64}),
        Case("latent + rope", "256 + 32", {"latent": 256, "rope": 32}),
        *_each("heads", "heads", 128, 64, 40, 16),
        *_each("block size", "block_size", *BLOCKS),
        Case("feature", "output alone", {}),
        Case("feature", "logarithms of the denominators", {"lse": True}),
        *(
            Case(TENSOR_PARALLEL, f"TP {size}: {16 // size} heads", {"heads": 16 // size})
            for size in TP_SIZES
        ),
    ),
    kernels.EXPERTS: (
        *DEVICES,
        *_each("element type", "dtype", *HALVES),
        *_each("activation", "activation", *ACTIVATIONS, "swigluoai"),
        *_each("top-k", "top_k", 1, 2, 6, 8),
        Case("router's weights", "on the output", {}),
        Case("router's weights", "on the input", {"weights_on_input": True}),
        *(
            Case("sizes", f"E{e} K{k} N{n}", _experts)
            for e, k, n, _experts in (
                (e, k, n, {"experts": e, "global_experts": e, "hidden": k, "intermediate": n,
                           "top_k": min(e, top)})
                for e, top, k, n in (
                    (128, 8, 2048, 768),
                    (64, 6, 2048, 1408),
                    (8, 2, 4096, 14336),
                    (256, 8, 7168, 256),
                    (4, 2, 100, 36),
                )
            )
        ),
        *(
            Case(TENSOR_PARALLEL, f"TP {size}: N {768 // size}", {"intermediate": 768 // size})
            for size in TP_SIZES
        ),
        *(
            Case(
                EXPERT_PARALLEL,
                f"EP {size}: {128 // size} of 128",
                {"experts": 128 // size, "mapped": True},
            )
            for size in (2, 4, 8)
        ),
    ),
}  # fmt: skip


def ask(kernel: Kernel[Any, Any, Any], dtype: Dtype) -> Support:
    """What a kernel says of each case of its op's grid, around the first base that it takes."""
    refused: dict[str, str] = {}
    for shown, base in _bases(kernel.op):
        why_not = kernel.supports(_spec(kernel.op, base, dtype))
        if why_not is None:
            answers = tuple(_answers(kernel, base, dtype))
            return Support(shown, refused, answers)
        refused[shown] = str(why_not)
    return Support(None, refused, ())


def _bases(op: str) -> Iterator[tuple[str, Changes]]:
    """The base on each device, in each element type of 16 bits."""
    for device in DEVICES:
        for name in HALVES[:2]:
            types = {field: name for field in DTYPES if field in BASES[op]}
            yield f"{device.shown}, {name}", {**BASES[op], **types, **device.changes}


def _answers(kernel: Kernel[Any, Any, Any], base: Changes, dtype: Dtype) -> Iterator[Answer]:
    for case in GRID[kernel.op]:
        why_not = kernel.supports(_spec(kernel.op, {**base, **case.changes}, dtype))
        yield Answer(case.aspect, case.shown, None if why_not is None else str(why_not))


def _spec(op: str, fields: Changes, dtype: Dtype) -> Any:
    return SPECS[op](
        **{name: dtype(value) if name in DTYPES else value for name, value in fields.items()}
    )
