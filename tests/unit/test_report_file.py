"""INFERA_REPORT's file: whole lines, whoever writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infera_compat import report

WRITER = """
import sys
from pathlib import Path
from infera_compat import report
file, name = Path(sys.argv[1]), sys.argv[2]
sys.stdin.read()
for number in range(40):
    body = name * (2000 * (number % 5))
    report.append(file, "served", {"name": name, "number": number, "body": body})
"""


def test_a_line_says_what_happened_where_and_when(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "report.jsonl"
    report.append(file, "registered", {"rank": 3})
    (line,) = file.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["rank"], entry["pid"]) == ("registered", 3, os.getpid())
    assert {"time", "process", "infera_compat"} <= set(entry)


def test_what_was_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "report.jsonl"
    file.write_text('{"event": "earlier"}\n')
    report.append(file, "later", {})
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == [
        "earlier",
        "later",
    ]


def test_a_line_stays_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    report.append(tmp_path / "report", "x", {"text": "two\nlines and a \u2028 separator"})
    assert len((tmp_path / "report").read_text().splitlines()) == 1


def test_lines_of_processes_that_write_at_once_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(file), name], stdin=subprocess.PIPE)
        for name in "abcd"
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0] * len(writers)
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    for name in "abcd":
        own = [entry for entry in entries if entry["name"] == name]
        assert [entry["number"] for entry in own] == list(range(40))
        assert all(entry["body"] == name * (2000 * (entry["number"] % 5)) for entry in own)


@pytest.mark.parametrize(
    ("name", "rank", "role"),
    [
        ("MainProcess", None, "front end"),
        ("EngineCore_0", None, "engine core"),
        ("Worker_TP1", None, "worker"),
        ("MainProcess", 0, "worker"),
        ("EngineCore", 0, "worker"),
    ],
)
def test_a_process_knows_its_role(
    monkeypatch: pytest.MonkeyPatch, name: str, rank: int | None, role: str
) -> None:
    monkeypatch.setattr(report.current_process(), "name", name)
    assert report.role(rank) == role
