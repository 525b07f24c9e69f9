"""The start-up lines under vLLM's own logging, and their JSON twin, in every process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import DENSE, HERE, MOE, Starts

from infera_compat import __version__
from infera_compat.release import Release
from infera_shims.engines import child


@pytest.mark.parametrize(
    ("way", "built"), [("passthrough", 2), ("passthrough compiled", 1), ("auto", 1)]
)
def test_two_lines_in_each_process_that_serves(
    run: Starts, way: str, built: int, release: Release
) -> None:
    """The output is that of front end, engine core and worker together."""
    lines = run(way).our_lines()
    start = [x for x in lines if f"infera-compat {__version__} on vLLM {release.text}" in x]
    model = [x for x in lines if "infera-compat: model built" in x]
    # The ways that run two models in one process build two; 0.22 starts a worker for each.
    assert len(model) == built
    assert len(start) in (1, built)
    assert len(lines) == len(start) + len(model)
    assert all(" INFO " in line or line.startswith("INFO ") for line in lines)


def test_the_lines_name_release_shim_contracts_seams_layers_and_the_switch(
    run: Starts, shim: object
) -> None:
    text = "\n".join(run("passthrough compiled").lines)
    of = len(shim.needs)
    assert f"(shim {shim.name}, contracts {of}/{of})" in text
    assert "attention: passthrough by get_attn_backend_cls" in text
    assert f"moe: passthrough by {shim.automatic('moe', 'cpu')[0]}" in text
    assert "INFERA_VLLM_OPS_DISABLE=1 switches all of this off" in text
    assert "attention: 2/2 layers by get_attn_backend_cls over CPU_ATTN, passthrough" in text
    assert f"moe: 2/2 layers by {shim.automatic('moe', 'cpu')[0]} over " in text


@pytest.mark.parametrize("way", ["off", "off compiled"])
def test_switched_off_one_line_in_each_process_that_serves(run: Starts, way: str) -> None:
    lines = run(way).our_lines()
    assert 1 <= len(lines) <= 2  # two models: one process, or a worker for each
    assert all("is off (INFERA_VLLM_OPS_DISABLE=1): this vLLM is stock" in line for line in lines)


def test_absent_nothing_is_said(run: Starts) -> None:
    assert run("absent").our_lines() == []


def test_each_process_writes_its_json_lines(run: Starts, release: Release) -> None:
    report = run("passthrough compiled").report
    events = [json.loads(line) for line in report.read_text().splitlines()]
    by_role: dict[str, list[str]] = {}
    for event in events:
        by_role.setdefault(event["role"], []).append(event["event"])
    assert by_role["front end"] == ["registered"]
    # From 0.23 on the engine core starts the CPU's worker as a process too.
    assert by_role["engine core"] == ["registered"]
    assert by_role["worker"][-2:] == ["model_built", "served"]
    assert events[-1]["vllm"] == release.text
    assert events[-1]["rank"] == 0
    assert all(layer["calls"]["serving"] == 1 for layer in events[-1]["layers"])


def test_the_report_command_reads_them(run: Starts) -> None:
    report = str(run("passthrough compiled").report)
    command = [sys.executable, "-c", "from infera_compat.cli import main; main()", "report"]
    shown = subprocess.run([*command, "--from", report], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    parsed = subprocess.run([*command, "--json", "--from", report], capture_output=True, text=True)
    workers = [entry for entry in json.loads(parsed.stdout) if entry["role"] == "worker"]
    assert [layer["bound"] for layer in workers[0]["layers"]] == [True] * 4


def test_report_without_an_engine(release: Release, shim: object) -> None:
    command = [sys.executable, "-c", "from infera_compat.cli import main; main()", "report"]
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert facts["vllm"] == release.text
    assert facts["shim"] == shim.name
    assert facts["contracts"]["held"] == facts["contracts"]["of"] == len(shim.needs)
    assert facts["contracts"]["known_files"] is True
    assert facts["layers"] is None


@pytest.mark.parametrize(
    ("variable", "value"), [("INFERA_ATTENTION", "flash"), ("INFERA_VLLM_OPS_DISABLE", "maybe")]
)
def test_an_unknown_value_stops_the_start_and_lists_the_known(
    start: object, variable: str, value: str
) -> None:
    with pytest.raises(child.ChildError) as stopped:
        start("bad", (DENSE,), False, False, **{variable: value}, **HERE)
    text = str(stopped.value)
    assert variable in text
    assert repr(value) in text
    assert "expected: one of" in text.lower()


def test_the_models_are_named_apart(run: Starts) -> None:
    names = [layer["layer"] for layer in run("passthrough").models[MOE]["reports"][0]["layers"]]
    assert len(set(names)) == len(names) == 4
