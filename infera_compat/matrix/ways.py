"""The ways in which each release is started: which seams, in which mode, with which models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ATTENTION, MOE = "attention", "moe"
AUTO = "auto"
EAGER, COMPILED = "cpu eager", "cpu compiled"
"""Eager: the engine core in the process that asks. Compiled: torch.compile, the core in another."""

PROMPTS = ((0, 5), (1, 17), (2, 40), (3, 130))
"""(seed, tokens) of each request: an odd number, one block of 16 and less, several blocks."""

MAX_TOKENS = 24


@dataclass(frozen=True)
class Model:
    """A kind of infera_shims.engines.weights, and the ops that its layers are.

    optional: stock itself may fail on it, on some releases.
    """

    name: str
    ops: tuple[str, ...]
    note: str
    optional: bool = False


DENSE = (Model("qwen3", (ATTENTION,), "dense"), Model("llama", (ATTENTION,), "dense"))
EXPERTS = Model("qwen3_moe", (ATTENTION, MOE), "MoE")
LATENT = Model("deepseek_v2", (ATTENTION, MOE), "MLA and MoE", optional=True)
MODELS = (*DENSE, EXPERTS, LATENT)  # the optional one last: what fails may leave traces


@dataclass(frozen=True)
class Way:
    """One start of vLLM. attention, moe: the seam that is asked for; both None: switched off."""

    attention: str | None
    moe: str | None
    mode: str
    models: tuple[Model, ...]

    @property
    def off(self) -> bool:
        """Whether this is stock, which the others are compared with."""
        return self.attention is None

    @property
    def name(self) -> str:
        """For people and file names."""
        seams = "off" if self.off else f"{self.attention} + {self.moe}"
        return f"{seams}, {self.mode}"

    def seam(self, op: str) -> str:
        """The seam that is asked for `op`."""
        seam = {ATTENTION: self.attention, MOE: self.moe}[op]
        if seam is None:
            raise ValueError(f"{self.name} asks for no seam of {op}")
        return seam

    @property
    def switches(self) -> dict[str, str]:
        """The environment variables that make it this way.

        INFERA_STRICT is not among them: that a seam refuses, and why, is a result.
        """
        core = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1" if self.mode == COMPILED else "0"}
        if self.attention is None or self.moe is None:
            return {"INFERA_VLLM_OPS_DISABLE": "1", **core}
        return {
            "INFERA_ATTENTION": "passthrough",
            "INFERA_ATTENTION_SEAM": self.attention,
            "INFERA_MOE": "passthrough",
            "INFERA_MOE_SEAM": self.moe,
            **core,
        }

    def job(self, folders: Mapping[str, str]) -> dict[str, Any]:
        """The job for infera_shims.engines.generate; `folders` says where each model lies."""
        return {
            "report": not self.off,
            "models": [
                {
                    "name": model.name,
                    "path": folders[model.name],
                    "optional": model.optional,
                    "max_tokens": MAX_TOKENS,
                    "prompts": [{"token_ids": prompt(seed, size)} for seed, size in PROMPTS],
                    "engine": {"enforce_eager": self.mode == EAGER},
                }
                for model in self.models
            ],
        }


def prompt(seed: int, size: int) -> list[int]:
    """Token ids that differ from prompt to prompt, and within one."""
    return [(7 * place * (seed + 3) + 11 * seed) % 500 + 5 for place in range(size)]


def _ways(mode: str, models: tuple[Model, ...], *seams: tuple[str, str]) -> tuple[Way, ...]:
    stock = Way(None, None, mode, models)
    return (stock, *(Way(attention, moe, mode, models) for attention, moe in seams))


WAYS = (
    *_ways(
        EAGER,
        MODELS,
        (AUTO, AUTO),
        ("get_attn_backend_cls", "modular_kernel"),
        ("platform", "register_oot"),
        ("layer", "pluggable_layer"),
        ("pluggable_layer", AUTO),
        ("model", "model"),
    ),
    *_ways(
        COMPILED,
        (EXPERTS,),
        (AUTO, AUTO),
        ("layer", "pluggable_layer"),
        ("model", "model"),
    ),
)
"""Stock comes first in each mode. Between them, the eager ways ask for each op by each seam."""
