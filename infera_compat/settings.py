"""Every INFERA_* variable, read once into a frozen Settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from infera_compat.errors import CompatError

DISABLE = "INFERA_VLLM_OPS_DISABLE"
ATTENTION = "INFERA_ATTENTION"
MOE = "INFERA_MOE"
STRICT = "INFERA_STRICT"
REPORT = "INFERA_REPORT"
ATTENTION_SEAM = "INFERA_ATTENTION_SEAM"
MOE_SEAM = "INFERA_MOE_SEAM"
RENAMED = {"INFERA_PLATFORM": ATTENTION_SEAM}
VARIABLES = (DISABLE, ATTENTION, MOE, STRICT, REPORT, ATTENTION_SEAM, MOE_SEAM)

AUTO, PASSTHROUGH, OFF = "auto", "passthrough", "off"
MODES = (AUTO, PASSTHROUGH, OFF)

PLATFORM = "platform"
SEAMS = {
    "attention": ("get_attn_backend_cls", PLATFORM, "layer", "pluggable_layer", "model"),
    "moe": ("modular_kernel", "register_oot", "pluggable_layer", "model"),
}
"""Where an op can be bound, best first; which of them a release has, its shim knows."""

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class Settings:
    """What the operator asked for.

    attention, moe: auto, passthrough, off, or the name of a kernel.
    strict: what can't be bound stops the start instead of staying stock.
    report: a file that gets JSON lines (report.py), or None.
    attention_seam, moe_seam: auto, or the one seam of SEAMS that is to be taken.
    misspelt: INFERA_* variables that are not ours but look like one of ours, with the likely name.
    """

    attention: str = AUTO
    moe: str = AUTO
    strict: bool = False
    report: Path | None = None
    attention_seam: str = AUTO
    moe_seam: str = AUTO
    misspelt: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str], kernels: Mapping[str, tuple[str, ...]]) -> Settings:
        """Read `environ`; `kernels` lists the registered kernels' names by op.

        Raises CompatError for a value that means nothing, with the known ones.
        """
        report = environ.get(REPORT, "").strip()
        return cls(
            attention=_mode(environ, ATTENTION, kernels["attention"]),
            moe=_mode(environ, MOE, kernels["moe"]),
            strict=_flag(environ, STRICT),
            report=Path(report).expanduser() if report else None,
            attention_seam=_seam(environ, ATTENTION_SEAM, SEAMS["attention"]),
            moe_seam=_seam(environ, MOE_SEAM, SEAMS["moe"]),
            misspelt=_misspelt(environ),
        )

    def asked(self, op: str) -> str:
        """What was asked for `op` ("attention" or "moe")."""
        return {"attention": self.attention, "moe": self.moe}[op]

    def seam(self, op: str) -> str:
        """The seam that was asked for `op`, or auto."""
        return {"attention": self.attention_seam, "moe": self.moe_seam}[op]

    @property
    def platform(self) -> bool:
        """Whether attention is to be bound through InferaPlatform."""
        return self.attention_seam == PLATFORM and self.attention != OFF


def disabled(environ: Mapping[str, str]) -> bool:
    """Whether the kill switch is thrown; read before, and without, everything else.

    Raises CompatError where its value is neither yes nor no.
    """
    return _flag(environ, DISABLE)


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in YES:
        return True
    if value in NO:
        return False
    raise CompatError(
        f"{name} is neither yes nor no",
        found=repr(environ[name]),
        expected=f"one of {', '.join(YES)} or {', '.join(filter(None, NO))}",
        do=f"Set {name}=1, or unset it.",
    )


def _mode(environ: Mapping[str, str], name: str, kernels: tuple[str, ...]) -> str:
    value = environ.get(name, AUTO).strip() or AUTO
    if value in MODES or value in kernels:
        return value
    known = ", ".join(MODES) + (
        f", or a kernel: {', '.join(kernels)}" if kernels else " (no kernel is registered)"
    )
    raise CompatError(
        f"{name} is not known", found=repr(value), expected=f"one of {known}", do=f"Mend {name}."
    )


def _seam(environ: Mapping[str, str], name: str, seams: tuple[str, ...]) -> str:
    value = environ.get(name, AUTO).strip() or AUTO
    if value == AUTO or value in seams:
        return value
    raise CompatError(
        f"{name} is not known",
        found=repr(value),
        expected=f"one of {', '.join((AUTO, *seams))}",
        do=f"Mend {name}.",
    )


def _misspelt(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Variables one slip away from ours: a kill switch that is misspelt kills nothing."""
    pairs = []
    for name in sorted(environ):
        upper = name.upper()
        if name in VARIABLES or not ({"INFERA", "INFRA"} & set(upper.split("_"))):
            continue
        if upper in RENAMED:
            pairs.append((name, RENAMED[upper]))
        elif "DISABLE" in upper:
            pairs.append((name, DISABLE))
        else:
            pairs += [(name, likely) for likely in get_close_matches(upper, VARIABLES, 1, 0.8)]
    return tuple(pairs)
