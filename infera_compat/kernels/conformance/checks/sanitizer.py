"""Memory accesses under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import infera_compat
from infera_compat.kernels.conformance.outcome import NotRun, Trial
from infera_compat.kernels.conformance.subject import Subject

TOOL = "compute-sanitizer"
FOUND = 86
"""The exit status that it is told to end with where it found something."""
CANNOT = 2
"""The exit status of a conformance run that could not begin."""
TIMEOUT = 300
ONLY = "poison"
"""The check that is run under it: few small cases."""


def sanitizer(subject: Subject) -> Iterator[Trial]:
    """memcheck over a process of its own, that runs one check."""
    tool = shutil.which(TOOL) or shutil.which(TOOL, path="/usr/local/cuda/bin")
    if tool is None:
        raise NotRun(f"no {TOOL} on PATH")
    if not subject.asked:
        raise NotRun("the kernel has no name by which another process finds it")
    begin = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND)]
    module = [sys.executable, "-m", "infera_compat.kernels.conformance", subject.asked]
    options = ["--device", "cuda", "--only", ONLY, "--seed", str(subject.seed), "--no-record"]
    try:
        done = subprocess.run(
            [*begin, *module, *options],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise NotRun(f"{TOOL} had not ended after {TIMEOUT} seconds") from error
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode == CANNOT:
        raise NotRun(lines[-1] if lines else f"status {CANNOT}")
    case = f"{ONLY} under memcheck"
    if done.returncode == 0:
        yield Trial(case)
        return
    told = [line.lstrip("= ").strip() for line in lines if line.startswith("=====")]
    what = next((line for line in told if line.startswith(("Invalid", "Program hit"))), None)
    yield Trial(case, what or (lines[-1] if lines else f"status {done.returncode}"))


def _environment() -> dict[str, str]:
    """The same, with an allocation for each tensor, so that an access past it is found."""
    root = str(Path(infera_compat.__file__).parent.parent)
    paths = filter(None, (root, os.environ.get("PYTHONPATH")))
    return os.environ | {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
