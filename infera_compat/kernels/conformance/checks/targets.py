"""The kernel's Triton functions compile for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from infera_compat.kernels.conformance import compilations
from infera_compat.kernels.conformance.outcome import NotRun, Trial, raised
from infera_compat.kernels.conformance.subject import Subject

TARGETS: Mapping[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
}
"""As Triton names them: backend, architecture, threads of a warp."""

Source = tuple[Any, Mapping[str, str], Mapping[str, Any]]


@runtime_checkable
class HasTriton(Protocol):
    """A kernel that shows its Triton functions."""

    def compiles_for(self) -> Iterator[Source]:
        """What `run` launches: (function, signature, constexprs).

        function: under @triton.jit. signature: by parameter, its type as Triton writes it ("*bf16",
        "i32", "constexpr"). constexprs: by parameter, the values of those that are.
        """
        ...


def targets(subject: Subject) -> Iterator[Trial]:
    """Each function for each target, without a GPU."""
    kernel = subject.kernel
    if not isinstance(kernel, HasTriton):
        raise NotRun("the kernel has no Triton function")
    if compilations.interpreted():
        raise NotRun("Triton's interpreter compiles nothing")
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise NotRun(f"no Triton: {error}") from error
    for function, signature, constexprs in kernel.compiles_for():
        for name, target in TARGETS.items():
            case = f"{function.__name__} for {name}"
            try:
                source = ASTSource(function, dict(signature), dict(constexprs))
                triton.compile(source, target=GPUTarget(*target))
            except Exception as error:  # noqa: BLE001 (each stage of Triton raises its own kind)
                yield Trial(case, raised(error))
            else:
                yield Trial(case)
