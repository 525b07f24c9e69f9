"""infera_mla_decode compiled for GPUs that are not here: what it takes of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from compiling import CAPABILITIES, assert_passes_interpreted, compiled, resources

from infera_compat.kernels import pieces
from infera_compat.kernels.attention.arguments import signature
from infera_compat.kernels.conformance.checks.targets import TARGETS, targets
from infera_compat.kernels.conformance.subject import Subject
from infera_compat.kernels.limits import AMD, SHARED
from infera_compat.kernels.mla_decode.contract import MlaDecodeSpec
from infera_compat.kernels.mla_decode.infera import KERNEL, TILES, Variant, variant
from infera_compat.kernels.mla_decode.split_latent import (
    WHOLE_NUMBERS,
    add_latents,
    split_latent,
)

if triton.knobs.runtime.interpret:
    pytest.skip("compiles, with TRITON_INTERPRET unset", allow_module_level=True)

HALF = torch.bfloat16


def chosen(target: str, heads: int) -> Variant:
    capability = CAPABILITIES[target]
    spec = MlaDecodeSpec(heads, 512, 64, HALF, HALF, 64, True, device="cpu", capability=capability)
    return variant(spec, False, pieces.LOOKED_AT[-1])


def compiled_for(function: Any, constants: Any, options: Any, target: str) -> Any:
    types = signature(function, HALF, constants)
    return compiled(function, types, constants, target, options, WHOLE_NUMBERS)


def test_in_the_interpreter() -> None:
    assert_passes_interpreted("test_infera_mla_decode.py")


def test_verify_compiles_it_for_every_target() -> None:
    trials = list(targets(Subject(KERNEL, torch.device("cpu"))))
    assert not [trial for trial in trials if trial.problem]
    assert {trial.case for trial in trials} == {
        f"{function} for {target}"
        for function in ("split_latent", "add_latents")
        for target in TARGETS
    }


@pytest.mark.parametrize("rows", TILES)
@pytest.mark.parametrize("target", CAPABILITIES)
def test_what_is_chosen_fits(target: str, rows: int, tmp_path: Path) -> None:
    """All programs that a multiprocessor is to hold, in shared memory and in registers."""
    capability = CAPABILITIES[target]
    most = AMD if capability is None else SHARED[capability]
    its = chosen(target, rows)
    assert its.block_m == rows
    for constants in (its.constants, its.constants_alone):
        kernel = compiled_for(split_latent, constants, its.options, target)
        assert kernel.metadata.shared * its.tile.programs <= most
        if "cubin" in kernel.asm:
            assert not resources(kernel, tmp_path)["STACK"]


def test_on_hopper(tmp_path: Path) -> None:
    """Reads are asynchronous and wide, many heads are multiplied by its tensor cores."""
    few, many = chosen("sm_90", 16), chosen("sm_90", 128)
    kernel = compiled_for(split_latent, few.constants, few.options, "sm_90")
    ptx = kernel.asm["ptx"]
    assert "cp.async.cg.shared.global" in ptx
    waits, releases = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
    assert ptx.index(waits) < ptx.index(releases), "who is released may read the step's lengths"
    threads = few.tile.programs * few.tile.warps * 32
    assert resources(kernel, tmp_path)["REG"] * threads <= 1 << 16, "both programs at once"
    kernel = compiled_for(split_latent, many.constants, many.options, "sm_90")
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    adds = compiled_for(add_latents, few.adding, {**pieces.ADDING, **few.early}, "sm_90")
    before, _ = adds.asm["ptx"].split(waits)
    assert "ld.global" in before, "lengths are read while the pieces are still being written"
    assert not resources(adds, tmp_path)["STACK"]
