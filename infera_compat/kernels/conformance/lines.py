"""What is said of a record, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from infera_compat.kernels.conformance.outcome import FAIL, NOT_RUN, PASS, Outcome
from infera_compat.kernels.conformance.record import Record


def line(outcome: Outcome) -> str:
    """An outcome in one line."""
    told = f"{outcome.cases} cases, {outcome.seconds:.1f} s" if outcome.cases else ""
    return f"{outcome.check:20} {outcome.status:8} {told:18} {outcome.detail}".rstrip()


def closing(record: Record) -> str:
    """How many checks passed, failed, and were not run, and on what."""
    count = Counter(outcome.status for outcome in record.outcomes)
    where = record.body["gpu"] or "a CPU"
    parts = [f"{count[status]} {status}" for status in (PASS, FAIL, NOT_RUN) if count[status]]
    verdict = "holds" if record.passed else "does not hold" if count[FAIL] else "was not checked"
    return f"{record.body['kernel']} on {where}: {verdict}. {', '.join(parts)}."


def refusals(refused: Mapping[str, str]) -> list[str]:
    """Why cases were not run, each reason once, with how many cases it kept out."""
    return [f"{why} ({count} cases)" for why, count in Counter(refused.values()).most_common()]
