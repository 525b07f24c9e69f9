"""What came of a check: it holds, it does not, or it could not be run, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"

NO_CASE = "the kernel takes no case of it"
MOST_PROBLEMS = 3
"""After so many cases that failed a check is given up: the rest would say the same."""
LONGEST = 300
"""Characters of an exception's text that are kept."""


class NotRun(Exception):
    """A check that can't be run here; its text says why."""


@dataclass(frozen=True)
class Trial:
    """One case of a check.

    problem: what was wrong, None where it holds. error: the largest absolute difference to what was
    expected. note: something measured, for the outcome's detail.
    """

    case: str
    problem: str | None = None
    error: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a check over all its cases.

    check: its name. status: PASS, FAIL or NOT_RUN. detail: what was measured, what is wrong, or why
    it was not run. cases: how many were run; none is never a pass.
    """

    check: str
    status: str
    detail: str
    cases: int
    seconds: float = field(compare=False, default=0.0)


def judge(check: str, trials: Iterable[Trial]) -> Outcome:
    """Go through the cases of a check.

    Whatever a kernel raises is a failure with its text, and ends the check, never the run.
    """
    began = time.monotonic()
    done: list[Trial] = []
    reason = NO_CASE
    try:
        for trial in _until_enough(trials):
            done.append(trial)
    except NotRun as error:
        reason = str(error)
    # A kernel may raise anything, or end the process: that is an outcome.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        done.append(Trial(f"case {len(done) + 1}", raised(error)))
    wrong = [trial for trial in done if trial.problem is not None]
    if wrong:
        status, detail = FAIL, _problems(wrong)
    elif done:
        status, detail = PASS, _measured(done)
    else:
        status, detail = NOT_RUN, reason
    return Outcome(check, status, detail, len(done), round(time.monotonic() - began, 2))


def raised(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"raised {type(error).__name__}: {short}"


def _until_enough(trials: Iterable[Trial]) -> Iterator[Trial]:
    problems = 0
    for trial in trials:
        yield trial
        problems += trial.problem is not None
        if problems == MOST_PROBLEMS:
            return


def _problems(wrong: Sequence[Trial]) -> str:
    first = f"{wrong[0].case}: {wrong[0].problem}"
    return first if len(wrong) == 1 else f"{first} (and {len(wrong) - 1} more)"


def _measured(done: Sequence[Trial]) -> str:
    parts = list(dict.fromkeys(trial.note for trial in done if trial.note))
    errors = [trial.error for trial in done if trial.error is not None]
    if errors:
        parts.append(f"largest difference {max(errors):.2g}")
    return "; ".join(parts)
