"""vLLM's entry points: the front door.

vLLM calls `register_ops` in every process (`vllm.general_plugins`) and `register_platform` while it
resolves its platform (`vllm.platform_plugins`), from 0.24 to 0.31 inside a half-imported vllm. So
this module imports no vLLM, and what is patched is patched after vLLM imported it by itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from infera_compat import imports, report
from infera_compat.errors import CompatError
from infera_compat.harmless import harmless
from infera_compat.install import Installation
from infera_compat.settings import Settings, disabled, names_a_kernel

# Imported only where a worker is about to be built (v1/worker/worker_base.py resolves it by name).
WORKER = "vllm.v1.worker.gpu_worker"
WORKER_BASE = "vllm.v1.worker.worker_base"
RAY_ENV = "vllm.ray.ray_env"
# The module that vLLM runs to look at a model class (model_executor/models/registry.py): no start.
INSPECTION = "vllm.model_executor.models.registry"
# The subcommands of `vllm` that can start a model (vllm/entrypoints/cli).
STARTS = frozenset({"serve", "bench", "run-batch", "launch"})
ASKS_ONLY = frozenset({"-h", "--help", "-v", "--version"})

_installation: Installation | None = None
_registered = False


def register_ops() -> None:
    """Prepare this process; idempotent, and cheap: nothing of vLLM is imported here.

    Raises CompatError only for a setting that can't be meant, and never where no model can be
    started (`vllm --help`, the model inspection); where a model is built it is raised again, since
    vLLM calls this once a process and a second start would otherwise go on without us in silence.
    """
    with harmless("registering", strict=False):
        _register(starts=not _only_asks())


def _register(starts: bool) -> None:
    """Register; `starts`: a model can be started here, so a bad setting is raised."""
    global _registered
    if _registered or _main_module() == INSPECTION:
        return
    imports.when_imported(RAY_ENV, _carry_to_ray)
    try:
        if disabled(os.environ):
            imports.when_imported(WORKER, lambda module: report.say(report.off_line()))
            _registered = True
            return
        installation = current()
        # Read anew: since the platform was asked for, the operator's script may have set more.
        installation.settings = read_settings(os.environ)
    except CompatError:
        # Again where a model is built, by what the variables say then.
        if WORKER not in sys.modules:
            imports.when_imported(WORKER, lambda module: _register(starts=True))
        if starts:
            raise
        return
    for name, likely in installation.settings.misspelt:
        report.warn(f"infera-compat: {name} is set and means nothing; did you mean {likely}?")
    imports.when_imported(WORKER_BASE, lambda module: _watch_worker(module, installation))
    installation.append("registered")
    _registered = True


def register_platform() -> str | None:
    """InferaPlatform's path where INFERA_ATTENTION_SEAM asks for it and it can be, else None.

    Raises nothing: vLLM swallows what is raised here, and `register_ops` says it again.
    """
    try:
        if disabled(os.environ) or not current().settings.platform:
            return None
    except CompatError:
        return None
    platform: ModuleType = importlib.import_module("infera_shims.seams.platform")
    path: str | None
    path, current().platform_note = platform.choose()
    return path


def current() -> Installation:
    """This process's installation; the settings are read on the first call."""
    global _installation
    if _installation is None:
        _installation = Installation(read_settings(os.environ))
    return _installation


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings in `environ`; raises CompatError for one that means nothing.

    Which kernels are installed is looked up only where one may be named: reading the metadata of
    an environment like vLLM's takes some 10 ms, in each of its processes.
    """
    if not names_a_kernel(environ):
        return Settings.read(environ, ())
    from infera_compat.kernels import registry

    return Settings.read(environ, registry.find().names())


def _watch_worker(worker_base: ModuleType, installation: Installation) -> None:
    with harmless("watching for a worker", installation.settings.strict):
        worker: ModuleType = importlib.import_module("infera_shims.seams.worker")
        worker.watch(worker_base, installation)


def _carry_to_ray(ray_env: ModuleType) -> None:
    """Let INFERA_* reach Ray's workers and actors, the kill switch first of all.

    Through the set of prefixes that vLLM copies (vllm/ray/ray_env.py), not through
    VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY: that variable is part of vLLM's compile key.
    """
    prefixes = vars(ray_env).get("DEFAULT_ENV_VAR_PREFIXES")
    if isinstance(prefixes, set):
        prefixes.add("INFERA_")
    else:
        report.warn(
            "infera-compat: vllm/ray/ray_env.py has no DEFAULT_ENV_VAR_PREFIXES; with Ray, set "
            "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY=INFERA_ so that its workers get the switches."
        )


def _main_module() -> str:
    """The name of the module that `python -m` runs here, or "" (a script; pdb, which has none)."""
    spec = vars(sys.modules["__main__"]).get("__spec__") if "__main__" in sys.modules else None
    return spec.name if spec is not None else ""


def _only_asks() -> bool:
    """Whether vLLM's own command line is at work and starts no model: no start to stop."""
    program, *rest = sys.argv or [""]
    if Path(program).name != "vllm" and not _main_module().startswith("vllm.entrypoints.cli"):
        return False
    # `--help=all` and `--help=<group>` are vLLM's own (vllm/utils/argparse_utils.py).
    words = [word.partition("=")[0] for word in rest]
    return not words or words[0] not in STARTS or not ASKS_ONLY.isdisjoint(words)
