"""Triton's functions compiled for GPUs that are not here, and tests of them in the interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from infera_compat.kernels.conformance.checks.targets import TARGETS

HERE = Path(__file__).parent
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CAPABILITIES = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_100": (10, 0), "gfx942": None, "gfx950": None}
"""Of specs, by one of TARGETS."""


def assert_passes_interpreted(file: str) -> None:
    """Run a file of tests in a process whose Triton interprets from the start."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=HERE,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def compiled(
    function: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    target: str,
    options: Mapping[str, Any],
    unaligned: Collection[str],
) -> Any:
    """As at run time: pointers are aligned, but for those that are not specialised on it."""
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(function.arg_names)
        if types[name].startswith("*") and name not in unaligned
    }
    source = ASTSource(function, dict(types), dict(constants), aligned)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=dict(options))


def resources(kernel: Any, folder: Path) -> dict[str, int]:
    """Registers a thread, and bytes of stack and local memory, as ptxas gave them."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    told = subprocess.run(
        [TOOLS / "cuobjdump", "--dump-resource-usage", file], capture_output=True, text=True
    ).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", told)}
