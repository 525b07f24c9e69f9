"""The only code that imports vLLM: what each line of releases looks like, and how a seam is bound.

Importing this package imports no vLLM; the modules in `seams` do, where they bind.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from infera_shims.shim import Shim

if TYPE_CHECKING:
    from infera_compat.binding import Binding
    from infera_compat.kernels.kernel import Kernel
    from infera_compat.ledger import Ledger
    from infera_shims.adapters.adapter import Adapter

# Oldest first; each holds from its own line of releases on, until the next one's.
LINES = ("v0_22", "v0_23", "v0_24", "main")


def order(version: Version | None) -> tuple[Shim, ...]:
    """The shims in the order to try them on `version`: probes decide, this only orders.

    A dev build is the next minor's code, or something between that and the one before, so the next
    minor's shim comes first. Without a version: newest first.
    """
    shims = [_shim(name) for name in LINES]
    if version is None:
        return tuple(reversed(shims))
    dev = version.is_devrelease
    minor = (version.major, version.minor + (1 if dev else 0))
    own = max((i for i, shim in enumerate(shims) if shim.first <= minor), default=0)
    # Its own, then what lies nearest; of two, the newer first, but for a dev build the one before.
    nearest = sorted(range(len(shims)), key=lambda i: (abs(i - own), i if dev else -i))
    return tuple(shims[i] for i in nearest)


@cache
def recorded() -> dict[str, dict[str, list[str]]]:
    """By shim and file of vLLM that it touches: the SHA-256 of every recorded release's.

    Written by `infera-compat matrix record`; a release's files stand under a shim only if all of
    that shim's contracts held on them when they were recorded.
    """
    file = resources.files(__package__) / "recorded" / "files.json"
    files: dict[str, dict[str, list[str]]] = json.loads(file.read_text("utf-8"))
    return files


# By op and seam: the module in seams/ and its function.
BINDS = {
    "attention.get_attn_backend_cls": ("backend_cls", "bind"),
    "attention.platform": ("backend_cls", "bind_platform"),
    "attention.layer": ("layer", "bind"),
    "attention.pluggable_layer": ("replaced", "bind_mla_layer"),
    "attention.model": ("whole_model", "bind"),
    "moe.modular_kernel": ("modular_kernel", "bind"),
    "moe.register_oot": ("replaced", "bind_moe_method"),
    "moe.pluggable_layer": ("replaced", "bind_moe_layer"),
    "moe.model": ("whole_model", "bind"),
}


# By a kernel's op: its adapter (in adapters/), and the seams that can hand it a layer's calls.
ADAPTERS = {
    "attention": (
        "attention.AttentionAdapter",
        ("get_attn_backend_cls", "platform", "layer", "model"),
    ),
    "mla_decode": ("mla_decode.MlaDecodeAdapter", ("layer", "model")),
    "experts": ("experts.ExpertsAdapter", ("modular_kernel",)),
}


def adapt(kernel: Kernel[Any, Any, Any], ledger: Ledger) -> Adapter:
    """A kernel over the layers of a model that is about to be built."""
    module, _, cls = ADAPTERS[kernel.op][0].partition(".")
    made: Adapter = vars(importlib.import_module(f"infera_shims.adapters.{module}"))[cls](
        kernel, ledger
    )
    return made


def carries(seam: str, kernel: Kernel[Any, Any, Any]) -> bool:
    """Whether a seam can hand layers to this kernel; the others only pass through."""
    return seam in ADAPTERS[kernel.op][1]


def bind(binding: Binding, seam: str, shim: Shim) -> None:
    """Bind an op by a seam.

    Raises Refused, before anything is changed, where it can't be done with certainty.
    """
    module, function = BINDS[f"{binding.choice.op}.{seam}"]
    bind_seam: Callable[[Binding, Shim], None] = vars(
        importlib.import_module(f"infera_shims.seams.{module}")
    )[function]
    bind_seam(binding, shim)


def line_of(release: str) -> str:
    """The line of releases, a shim's name, that a release's version belongs to.

    Raises ValueError for what is no version.
    """
    return order(Version(release))[0].name


def asked(op: str, config: Any) -> str | None:
    """What the operator asked of vLLM for an op, so that nothing is chosen for it; None: nothing.

    config: the worker's VllmConfig.
    """
    found: str | None = importlib.import_module("infera_shims.configured").asked(op, config)
    return found


def kinds(op: str, config: Any) -> tuple[str, ...]:
    """The ops of kernels that a model has layers for, of those of `op`."""
    found: tuple[str, ...] = importlib.import_module("infera_shims.configured").kinds(op, config)
    return found


def device_name() -> str:
    """What vLLM calls the first device ("NVIDIA H200"); CUDA is not initialised for it.

    Upstream: vllm/platforms/interface.py `Platform.get_device_name` (every release).
    """
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    found: str = platform.get_device_name()
    return found


def device_type() -> str:
    """vLLM's name for the active platform's kind of device ("cuda", "cpu", …)."""
    found: str = importlib.import_module("vllm.platforms").current_platform.device_type
    return found


def salt_compile_cache(name: str, fingerprint: Callable[[], str] | None) -> None:
    """Let `fingerprint` into the key of vLLM's compile caches (vllm/envs.py, every release).

    None takes it out again.
    """
    variables = importlib.import_module("vllm.envs").environment_variables
    if fingerprint is None:
        variables.pop(name, None)
    else:
        variables[name] = fingerprint


def _shim(name: str) -> Shim:
    shim: Shim = importlib.import_module(f"infera_shims.{name}").SHIM
    return shim
