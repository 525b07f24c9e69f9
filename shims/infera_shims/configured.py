"""What the operator asked of vLLM itself, and what a model is, by the worker's VllmConfig.

Upstream: vllm/config/attention.py `AttentionConfig.backend` (what `--attention-backend` sets, in
every release) and `backend_per_kind` (0.26 on), vllm/config/kernel.py `KernelConfig.moe_backend`
(`--moe-backend`, every release), vllm/config/model.py `ModelConfig.use_mla`. No release reads
VLLM_ATTENTION_BACKEND any more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from infera_compat.kernels.kernel import ATTENTION, EXPERTS, MLA_DECODE

NOBODY = "auto"
"""vLLM's word for a backend that it chooses itself."""


def asked(op: str, config: Any) -> str | None:
    """Why nothing is to be chosen for an op besides what the operator asked of vLLM, or None.

    Raises AttributeError where this vLLM's config has not what is looked for.
    """
    if importlib.import_module("vllm.envs").VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT is set"
    return _ASKED[op](config)


def kinds(op: str, config: Any) -> tuple[str, ...]:
    """The ops of kernels that a model may have layers for: MLA takes the place of attention."""
    if op == "moe":
        return (EXPERTS,)
    return (MLA_DECODE,) if config.model_config.use_mla else (ATTENTION,)


def _attention(config: Any) -> str | None:
    backend = config.attention_config.backend
    if backend is not None:
        return f"vLLM was told its attention backend, {_name(backend)}"
    # Until 0.25 there is one backend for all layers.
    if hasattr(config.attention_config, "backend_per_kind"):
        told = config.attention_config.backend_per_kind
        if told:
            return f"vLLM was told its attention backends, for {', '.join(map(str, told))}"
    return None


def _moe(config: Any) -> str | None:
    backend = config.kernel_config.moe_backend
    return None if backend == NOBODY else f"vLLM was told its MoE backend, {_name(backend)}"


def _name(backend: Any) -> str:
    return str(backend.name if hasattr(backend, "name") else backend)


_ASKED: Mapping[str, Callable[[Any], str | None]] = {"attention": _attention, "moe": _moe}
