"""What `infera-compat verify` found: matrix/results/verify-<kernel>-<gpu or cpu>.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
STATUSES = (FAIL, NOT_RUN, PASS)
TOLD = ("device", "gpu", "torch", "triton", "python", "infera_compat", "commit", "date", "passed")
"""The parts of a record that a plan shows, beside its outcomes."""


@dataclass(frozen=True)
class Outcome:
    """What came of a check on one machine, or of a check that no record has (where is empty)."""

    check: str
    status: str
    detail: str
    where: str = ""
    cases: int = 0

    @property
    def passed(self) -> bool:
        """Whether it was run, and holds."""
        return self.status == PASS


@dataclass(frozen=True)
class Proof:
    """One record: a run of verify on one machine."""

    file: Path
    told: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    refused: tuple[str, ...]

    @property
    def where(self) -> str:
        """The machine."""
        return str(self.told["gpu"] or "CPU")

    @property
    def on_gpu(self) -> bool:
        """Whether it was a GPU."""
        return self.told["gpu"] is not None

    @property
    def failed(self) -> tuple[str, ...]:
        """The checks that failed; a record that says so without naming one is named itself."""
        names = tuple(x.check for x in self.outcomes if x.status == FAIL)
        return names or (() if self.told["passed"] else ("the whole run",))


@dataclass(frozen=True)
class Proofs:
    """All records of a kernel, a machine each."""

    kernel: str
    records: tuple[Proof, ...]

    def do(self, on_gpu: bool = False) -> str:
        """The command that would make a record."""
        return f"`infera-compat verify {self.kernel}{' --device cuda' if on_gpu else ''}`"

    @property
    def checks(self) -> tuple[str, ...]:
        """Every check that a record names, in the order of the first."""
        return tuple(dict.fromkeys(x.check for proof in self.records for x in proof.outcomes))

    @property
    def failed(self) -> tuple[str, ...]:
        """Every check that failed, with its machine."""
        return tuple(f"{name} ({x.where})" for x in self.records for name in x.failed)

    def outcome(self, check: str, on_gpu: bool = False) -> Outcome:
        """A check over all machines: one that failed anywhere failed, one that passed passed.

        on_gpu: only what ran on a GPU counts.
        """
        records = [proof for proof in self.records if proof.on_gpu or not on_gpu]
        found = [x for proof in records for x in proof.outcomes if x.check == check]
        for status in (FAIL, PASS):
            told = [x for x in found if x.status == status]
            if told:
                return Outcome(
                    check,
                    status,
                    "; ".join(dict.fromkeys(x.detail for x in told if x.detail)),
                    ", ".join(dict.fromkeys(x.where for x in told)),
                    sum(x.cases for x in told),
                )
        if found:
            why = "; ".join(dict.fromkeys(f"{x.where}: {x.detail}" for x in found))
        else:
            why = f"no record of verify {'on a GPU ' if on_gpu else ''}has it"
        return Outcome(check, NOT_RUN, why)


def read(checkout: Checkout, kernel: str, op: str) -> Proofs:
    """The records of a kernel; raises CompatError where one is damaged."""
    candidates = sorted(checkout.results.glob(f"verify-{kernel}-*.json"))
    bodies = [(file, files.load(file)) for file in candidates]
    # A kernel's name may begin with another's: the record says whose it is.
    records = tuple(
        _proof(file, body, op) for file, body in bodies if _kernel(file, body) == kernel
    )
    return Proofs(kernel, records)


def _kernel(file: Path, body: Mapping[str, Any]) -> str:
    if "kernel" not in body:
        raise files.damaged(file, "no kernel", "a record of infera-compat verify")
    return str(body["kernel"])


def _proof(file: Path, body: Mapping[str, Any], op: str) -> Proof:
    missing = [name for name in ("op", "outcomes", "refused", *TOLD) if name not in body]
    if missing:
        raise files.damaged(file, f"no {', '.join(missing)}", "a record of infera-compat verify")
    if body["op"] != op:
        raise files.damaged(file, f"op {body['op']}", f"op {op}, the kernel's")
    where = str(body["gpu"] or "CPU")
    try:
        outcomes = tuple(
            Outcome(x["check"], x["status"], str(x["detail"] or ""), where, int(x["cases"] or 0))
            for x in body["outcomes"]
        )
        refused = tuple(f"{x['case']}: {x['why']}" for x in body["refused"])
    except (TypeError, KeyError, ValueError) as error:
        expected = "outcomes (check, status, detail, cases) and refused cases (case, why)"
        raise files.damaged(file, f"{type(error).__name__}: {error}", expected) from error
    if unknown := {x.status for x in outcomes} - set(STATUSES):
        raise files.damaged(file, f"a check is {unknown}", f"one of {', '.join(STATUSES)}")
    return Proof(file, {name: body[name] for name in TOLD}, outcomes, refused)
