"""A run of the checks, and its record: matrix/results/verify-<kernel>-<gpu, or cpu>.json."""

from __future__ import annotations

import dataclasses
import importlib
import platform
import re
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import infera_compat
from infera_compat.errors import CompatError
from infera_compat.kernels import registry, sources
from infera_compat.kernels.conformance import check as checks
from infera_compat.kernels.conformance.outcome import FAIL, PASS, Outcome
from infera_compat.kernels.conformance.subject import Subject
from infera_compat.kernels.kernel import Kernel
from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout

DEVICES = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class Named:
    """A kernel as it was asked for. distribution: where it is from, with its version."""

    asked: str
    kernel: Kernel[Any, Any, Any]
    distribution: str


def named(asked: str) -> Named:
    """The kernel of a name, or of "module:attribute" where nothing is installed.

    Raises CompatError where there is none.
    """
    if ":" in asked:
        return Named(asked, _imported(asked), f"(not installed: {asked})")
    found = registry.find()
    return Named(asked, found.load(asked), found.entries[asked].source)


def _imported(asked: str) -> Kernel[Any, Any, Any]:
    module, _, attribute = asked.partition(":")
    try:
        kernel = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise CompatError(
            f"{asked} can't be imported",
            found=f"{type(error).__name__}: {error}",
            expected="module:attribute, or the name of a kernel that is installed",
            do="Mend it.",
        ) from error
    if not isinstance(kernel, Kernel):
        raise CompatError(
            f"{asked} is no kernel",
            found=f"an object of the type {type(kernel).__name__}",
            expected="a Kernel's instance",
            do="Mend it.",
        )
    name = kernel.name if hasattr(kernel, "name") else attribute
    registry.checked(registry.Entry(name, asked, "(not installed)", ""), kernel)
    return kernel


def device(asked: str | None) -> torch.device:
    """The device to check on: a GPU where there is one, unless another is asked for.

    Raises CompatError for one that is not there.
    """
    there = torch.cuda.is_available()
    name = asked or ("cuda" if there else "cpu")
    if name not in DEVICES or (name == "cuda" and not there):
        raise CompatError(
            f"device {name} can't be used",
            found="a GPU that torch can use" if there else "no GPU that torch can use",
            expected=f"one of {', '.join(DEVICES if there else DEVICES[:1])}",
            do="Give another --device.",
        )
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


@dataclasses.dataclass(frozen=True)
class Record:
    """What came of a run of the checks. body: what is written, JSON."""

    body: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    refused: dict[str, str]

    @property
    def passed(self) -> bool:
        """Nothing failed, and something was checked."""
        return bool(self.body["passed"])


def make(
    found: Named,
    on: torch.device,
    seed: int,
    only: Collection[str] = (),
    told: Callable[[checks.Check, Outcome | None], None] | None = None,
) -> Record:
    """Run the checks.

    only: the names of some checks; all where there is none. told: called with each check before it
    runs, and again with its outcome.
    """
    subject = Subject(found.kernel, on, seed, found.asked)
    outcomes: list[Outcome] = []
    for check in checks.chosen(only):
        if told is not None:
            told(check, None)
        outcomes.append(checks.run(check, subject))
        if told is not None:
            told(check, outcomes[-1])
    refused = dict(subject.refused)
    return Record(_body(found, on, seed, outcomes, refused), tuple(outcomes), refused)


def _body(
    found: Named, on: torch.device, seed: int, outcomes: list[Outcome], refused: dict[str, str]
) -> dict[str, Any]:
    statuses = {outcome.status for outcome in outcomes}
    checkout = here()
    return {
        "kernel": found.kernel.name,
        "op": found.kernel.op,
        "distribution": found.distribution,
        "device": on.type,
        "gpu": torch.cuda.get_device_name(on) if on.type == "cuda" else None,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "infera_compat": infera_compat.__version__,
        "commit": _commit(checkout),
        "sources": _sources(found.kernel),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
        "refused": [{"case": case, "why": why} for case, why in refused.items()],
        "passed": PASS in statuses and FAIL not in statuses,
    }


def _sources(kernel: Kernel[Any, Any, Any]) -> dict[str, str] | None:
    """Whose sources ran; None where they can't be found: the record then speaks for none."""
    try:
        return {kernel.name: sources.digest(kernel)}
    except CompatError:
        return None


def here() -> Checkout | None:
    """The checkout that this code runs from, or None where it is installed."""
    try:
        return Checkout.at(Path(infera_compat.__file__).parent.parent)
    except CompatError:
        return None


def _commit(checkout: Checkout | None) -> str | None:
    commit = None if checkout is None else checkout.commit()
    if checkout is None or commit is None:
        return None
    return f"{commit}, changed since" if checkout.dirty() else commit


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def write(record: Record, out: Path | None, whole: bool) -> Path | None:
    """Write the record to `out`, or to its place in the checkout; returns where.

    whole: whether all checks were run: a part of them takes no record's place in the checkout.
    None: nothing was written. Raises CompatError where it can't be.
    """
    checkout = here()
    if out is None and (checkout is None or not whole):
        return None
    where = out if out is not None or checkout is None else checkout.results / file_name(record)
    assert where is not None
    with files.writing("the record", where, "--out"):
        files.put_json(where, record.body)
    return where


def file_name(record: Record) -> str:
    """By the kernel and the GPU's name, its maker left out: verify-<kernel>-h200.json, say."""
    gpu = record.body["gpu"]
    words = [] if gpu is None else re.findall(r"[a-z0-9]+", gpu.lower())
    slug = "-".join(word for word in words if word not in ("nvidia", "amd")) or "cpu"
    return f"verify-{record.body['kernel']}-{slug}.json"
