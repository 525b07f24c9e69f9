"""A child process that is to be stopped, that fails, and one of another interpreter."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from infera_shims.engines import child

FOREVER = "import os, pathlib, sys, time\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"


def test_stop_ends_a_silent_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LOOK_S", 0.05)
    (tmp_path / "forever.py").write_text(FOREVER + "time.sleep(600)\n")
    number, stop = tmp_path / "pid", threading.Event()

    def when_it_runs() -> None:
        while not (number.exists() and number.read_text()):
            time.sleep(0.01)
        stop.set()

    threading.Thread(target=when_it_runs).start()
    with pytest.raises(child.Stopped):
        child.spawn("forever", [str(number)], {"PYTHONPATH": str(tmp_path)}, stop=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


WORKER = """
print("(Worker) ERROR vllm.errors.WrongError: the cause")
for i in range(60):
    print("traceback", i)
raise SystemExit("Exception: it failed to start")
"""


def test_an_error_above_its_last_lines_is_told_too(tmp_path: Path) -> None:
    """A worker's traceback comes before its parent's, which may be longer than what is kept."""
    (tmp_path / "worker.py").write_text(WORKER)
    with pytest.raises(child.ChildError) as failed:
        child.spawn("worker", [], {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"})
    told = str(failed.value).splitlines()
    assert "exited with status 1" in told[0]
    assert told[0].endswith("Errors further up:")
    assert told[1:4] == [
        "    (Worker) ERROR vllm.errors.WrongError: the cause",
        "Its last lines:",
        "    traceback 21",
    ]
    assert told[-1].strip() == "Exception: it failed to start"


def test_it_runs_by_the_interpreter_that_is_named(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho by another\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    output = child.spawn("platform", [], child.environment(), python=str(other))
    lines = list(output.last)
    assert lines[0] == "by another"
    assert len(lines) == 2
