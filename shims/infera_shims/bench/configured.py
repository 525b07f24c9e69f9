"""A VllmConfig as an engine of the installed release has it, for a layer that stands alone.

Upstream: vllm/engine/arg_utils.py `EngineArgs.create_engine_config` (every release), so that all
that an engine would choose by itself is chosen: graph sizes, block size, backends. The model is a
config.json, without weights and without a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm.config
from vllm.engine.arg_utils import EngineArgs

from infera_shims.engines import weights


@dataclass(frozen=True)
class Limits:
    """What the engine would serve at most.

    requests, tokens: of a step. seq_len: tokens of a request; a block table is as wide, and a
    graph is captured for it, however short what it is replayed on. dtype: of weights and caches.
    """

    requests: int
    tokens: int
    seq_len: int
    dtype: str


SERVER = Limits(requests=256, tokens=16384, seq_len=40960, dtype="bfloat16")
REHEARSED = Limits(requests=8, tokens=64, seq_len=128, dtype="float16")
"""Triton's interpreter multiplies the bits of bfloat16."""


def configured(
    kind: weights.Kind, shape: weights.Shape, folder: Path, limits: Limits, **extra: Any
) -> Any:
    """The VllmConfig of a model of that kind and shape. folder: gets its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(weights.configuration(kind, shape))
    (folder / "config.json").write_text(text, "utf-8")
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=limits.dtype,
        max_model_len=limits.seq_len,
        max_num_seqs=limits.requests,
        max_num_batched_tokens=limits.tokens,
        enable_prefix_caching=False,
        **extra,
    ).create_engine_config()


def current(config: Any) -> AbstractContextManager[None]:
    """As a worker prepares kernels and makes caches: its config is current, and no more."""
    found: AbstractContextManager[None] = vllm.config.set_current_vllm_config(config)
    return found


@contextmanager
def building(config: Any, device: torch.device) -> Iterator[None]:
    """As a worker builds its model: its config is current, its type and device are the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.model_config.dtype)
    try:
        with current(config), device:
            yield
    finally:
        torch.set_default_dtype(before)


def on_cpu() -> bool:
    """Whether this is a rehearsal: there is no GPU, and nothing is timed."""
    return not torch.cuda.is_available()


def here() -> torch.device:
    """The device that a worker would have."""
    return torch.device("cpu" if on_cpu() else "cuda:0")
