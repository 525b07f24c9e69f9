"""infera_decode and infera_attention compiled for GPUs that are not here: what they take of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compiling
import pytest
import torch
import triton
from compiling import CAPABILITIES, assert_passes_interpreted, resources

from infera_compat.kernels import pieces
from infera_compat.kernels.attention import arguments, infera_attention, infera_decode, settings
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.attention.prefill import WHOLE_NUMBERS, prefill
from infera_compat.kernels.attention.split_kv import add_pieces, split_kv
from infera_compat.kernels.conformance.checks.targets import TARGETS, targets
from infera_compat.kernels.conformance.subject import Subject
from infera_compat.kernels.limits import AMD, SHARED, Limits

if triton.knobs.runtime.interpret:
    pytest.skip("compiles, with TRITON_INTERPRET unset", allow_module_level=True)

INTERPRETED = (
    "test_infera_attention.py",
    "test_infera_attention_settings.py",
    "test_tuners.py",
)


def layer(target: str, head_size: int = 128, **about: Any) -> AttentionSpec:
    half = torch.bfloat16
    capability = CAPABILITIES[target]
    return AttentionSpec(
        32, 8, head_size, half, half, block_size=16, device="cpu", capability=capability, **about
    )


def compiled(function: Any, constants: Any, options: Any, target: str) -> Any:
    types = arguments.signature(function, torch.bfloat16, constants)
    return compiling.compiled(function, types, constants, target, options, WHOLE_NUMBERS)


def spilled(kernel: Any, folder: Path) -> int:
    """Bytes of a thread's stack: registers that did not suffice."""
    return resources(kernel, folder)["STACK"]


@pytest.mark.parametrize("file", INTERPRETED)
def test_in_the_interpreter(file: str) -> None:
    assert_passes_interpreted(file)


def test_verify_compiles_both_for_every_target() -> None:
    """With a GPU or without one. infera_decode's functions are among infera_attention's."""
    trials = list(targets(Subject(infera_attention.KERNEL, torch.device("cpu"))))
    assert not [trial for trial in trials if trial.problem]
    assert {trial.case for trial in trials} == {
        f"{function} for {target}"
        for function in ("split_kv", "add_pieces", "prefill")
        for target in TARGETS
    }


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("target", CAPABILITIES)
def test_what_is_chosen_fits(target: str, head_size: int) -> None:
    spec = layer(target, head_size)
    capability = CAPABILITIES[target]
    most = AMD if capability is None else SHARED[capability]
    for queries in infera_decode.QUERIES:
        chosen = infera_decode.variant(spec, queries, pieces.LOOKED_AT[-1])
        shared = compiled(split_kv, chosen.constants, chosen.options, target).metadata.shared
        assert shared * chosen.settings.programs <= most
    prompts = infera_attention.variant(spec, pieces.LOOKED_AT[-1])
    kernel = compiled(prefill, prompts.constants, prompts.options, target)
    assert kernel.metadata.shared <= most


def test_the_shared_memory_of_hopper_is_known(tmp_path: Path) -> None:
    """What `settings` reckons with is what Triton takes, so that a tuner's choice can be judged."""
    spec = layer("sm_90")
    chosen = infera_decode.variant(spec, 1, pieces.LOOKED_AT[-1])
    kernel = compiled(split_kv, chosen.constants, chosen.options, "sm_90")
    said = settings.decoding_bytes(chosen.settings, chosen.block_m, chosen.block_d)
    assert said == chosen.settings.programs * kernel.metadata.shared
    ptx = kernel.asm["ptx"]
    assert "cp.async.cg.shared.global" in ptx, "keys and values come asynchronously, 16 bytes wide"
    waits, releases = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
    assert ptx.index(waits) < ptx.index(releases), "who is released may read the step's lengths"
    assert not spilled(kernel, tmp_path)
    adds = compiled(add_pieces, chosen.adding, {**pieces.ADDING, **chosen.early}, "sm_90")
    ptx = adds.asm["ptx"]
    before, behind = ptx.split(waits)
    assert "ld.global" in before, "lengths are read while the pieces are still being written"
    assert "ld.global.v4" in behind or "ld.global.v2" in behind, "rows are read in wide loads"
    assert not spilled(adds, tmp_path)


def test_prefill_uses_hoppers_tensor_cores(tmp_path: Path) -> None:
    chosen = infera_attention.variant(layer("sm_90"), pieces.LOOKED_AT[-1])
    kernel = compiled(prefill, chosen.constants, chosen.options, "sm_90")
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert not spilled(kernel, tmp_path)
    assert kernel.metadata.shared == settings.prefilling_bytes(
        chosen.settings, 128, Limits.of(chosen.spec)
    )
