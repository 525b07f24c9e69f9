"""Every INFERA_* variable, read once into a frozen Settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
KERNEL_TABLE = "INFERA_KERNEL_TABLE"
CACHE_DIR = "INFERA_CACHE_DIR"
RENAMED = {"INFERA_PLATFORM": ATTENTION_SEAM}
VARIABLES = (
    *(DISABLE, ATTENTION, MOE, STRICT, REPORT),
    *(ATTENTION_SEAM, MOE_SEAM, KERNEL_TABLE, CACHE_DIR),
)

AUTO, PASSTHROUGH, OFF = "auto", "passthrough", "off"
MODES = (AUTO, PASSTHROUGH, OFF)
ALL = "all"
"""Of INFERA_KERNEL_TABLE: a kernel runs wherever it supports a layer, measured or not."""

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
    kernel_table: auto (each kernel's own measured table), all, or a file with such a table.
    cache_dir: the folder of tuned settings; None where no home folder is known: none are kept.
    misspelt: INFERA_* variables that are not ours but look like one of ours, with the likely name.
    """

    attention: str = AUTO
    moe: str = AUTO
    strict: bool = False
    report: Path | None = None
    attention_seam: str = AUTO
    moe_seam: str = AUTO
    kernel_table: str | Path = AUTO
    cache_dir: Path | None = None
    misspelt: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str], kernels: Sequence[str]) -> Settings:
        """Read `environ`; `kernels` are the names of installed kernels, of any op.

        They are needed only where `names_a_kernel`. Which op a kernel is for is not looked at: its
        module says so, and is not imported here.
        Raises CompatError for a value that means nothing, with the known ones.
        """
        return cls(
            attention=_mode(environ, ATTENTION, kernels),
            moe=_mode(environ, MOE, kernels),
            strict=_flag(environ, STRICT),
            report=_path(environ, REPORT),
            attention_seam=_seam(environ, ATTENTION_SEAM, SEAMS["attention"]),
            moe_seam=_seam(environ, MOE_SEAM, SEAMS["moe"]),
            kernel_table=_table(environ),
            cache_dir=_cache_dir(environ),
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


def names_a_kernel(environ: Mapping[str, str]) -> bool:
    """Whether a value may be a kernel's name: only then is it worth finding which there are."""
    return any(_asked(environ, name) not in MODES for name in (ATTENTION, MOE))


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


def _asked(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, AUTO).strip() or AUTO


def _mode(environ: Mapping[str, str], name: str, kernels: Sequence[str]) -> str:
    value = _asked(environ, name)
    if value in MODES or value in kernels:
        return value
    known = ", ".join(MODES) + (
        f", or a kernel: {', '.join(kernels)}" if kernels else " (no kernel is registered)"
    )
    raise CompatError(
        f"{name} is not known", found=repr(value), expected=f"one of {known}", do=f"Mend {name}."
    )


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    """The path that a variable holds, or None."""
    value = environ.get(name, "").strip()
    if not value:
        return None
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise CompatError(
            f"{name} is no path",
            found=f"{value!r} ({error})",
            expected="a path, or ~ of a user that this system knows",
            do=f"Write {name} out.",
        ) from error


def _table(environ: Mapping[str, str]) -> str | Path:
    value = _asked(environ, KERNEL_TABLE)
    path = _path(environ, KERNEL_TABLE)
    if value in (AUTO, ALL) or path is None:
        return value
    # By its ending, so that a slip in a word is not taken for a file's name.
    if path.suffix == ".json":
        return path
    raise CompatError(
        f"{KERNEL_TABLE} is not known",
        found=repr(value),
        expected=f"one of {AUTO}, {ALL}, or the path of a table, which ends in .json",
        do=f"Mend {KERNEL_TABLE}.",
    )


def _cache_dir(environ: Mapping[str, str]) -> Path | None:
    """INFERA_CACHE_DIR, else a folder of our own where caches lie by the XDG specification."""
    named = _path(environ, CACHE_DIR)
    if named is not None:
        return named
    cache, home = (Path(environ.get(name, "")) for name in ("XDG_CACHE_HOME", "HOME"))
    if cache.is_absolute():  # a relative one is to be ignored, says the specification
        return cache / "infera-compat"
    return home / ".cache" / "infera-compat" if home.is_absolute() else None


def _seam(environ: Mapping[str, str], name: str, seams: tuple[str, ...]) -> str:
    value = _asked(environ, name)
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
