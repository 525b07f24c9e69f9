"""Kernels in a process of vLLM's, and in `infera-compat report`: looked for only where it helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_kernels import GROUP, kernel
from fake_vllm import Fake

REGISTER = """
from importlib import metadata

asked = []
real = metadata.entry_points

def entry_points(**given):
    asked.append(given.get("group"))
    return real(**given)

metadata.entry_points = entry_points
from infera_compat.errors import CompatError
from infera_compat.plugin import register_ops

try:
    register_ops()
    said = None
except CompatError as error:
    said = str(error)
answer(asked=asked, said=said)
"""
MAIN = "from infera_compat.cli import main\nmain()\n"
WIDE = {"COLUMNS": "300", "TERM": "dumb"}


@pytest.fixture
def path(fake: Fake) -> tuple[Path, ...]:
    """For a process that finds no kernels but these."""
    sources = {
        "one": kernel("one"),
        "two": kernel("two", "experts"),
        "bad": "print('noise')\nraise OSError('no libcuda.so.1')",
        "far": "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
    }
    for name, source in sources.items():
        fake.write(f"{name}_module.py", source)
        fake.entry_point(f"{name}_dist", GROUP, name, f"{name}_module:KERNEL")
    return fake.without_plugin()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "off"},
        {"INFERA_ATTENTION": "one", "INFERA_VLLM_OPS_DISABLE": "1"},
    ],
)
def test_where_none_is_named_no_metadata_is_read(
    fake: Fake, path: tuple[Path, ...], environ: dict[str, str]
) -> None:
    ran = fake.run(REGISTER, path=path, **environ)
    assert (ran.answer["asked"], ran.answer["said"]) == ([], None)


def test_a_named_kernel_is_found_and_not_imported(fake: Fake, path: tuple[Path, ...]) -> None:
    ran = fake.run(REGISTER, path=path, INFERA_ATTENTION="one", INFERA_MOE="bad")
    assert ran.answer["said"] is None
    assert set(ran.answer["asked"]) == {GROUP}
    assert "noise" not in ran.out


def test_a_name_that_nobody_has_stops_and_lists_the_kernels(
    fake: Fake, path: tuple[Path, ...]
) -> None:
    said = fake.run(REGISTER, path=path, INFERA_ATTENTION="won").answer["said"]
    assert "or a kernel: bad, far, one, two" in said


def reported(fake: Fake, path: tuple[Path, ...]) -> list[dict[str, Any]]:
    ran = fake.run(MAIN, "report", "--json", path=path, **WIDE)
    found: list[dict[str, Any]] = json.loads(ran.out)["kernels"]
    return found


def test_the_report_lists_every_kernel_with_its_state(fake: Fake, path: tuple[Path, ...]) -> None:
    found = reported(fake, path)
    assert [(row["name"], row["op"], row["state"]) for row in found] == [
        ("bad", None, "broken"),
        ("far", None, "not loaded"),
        ("one", "attention", "ok"),
        ("two", "experts", "ok"),
    ]
    assert (found[0]["distribution"], found[0]["version"]) == ("bad_dist", "1.0")
    assert "no libcuda.so.1" in found[0]["why_not"]
    assert found[1]["why_not"] == "not loaded: No module named 'torch'"


def test_the_report_tells_a_person_the_same(fake: Fake, path: tuple[Path, ...]) -> None:
    ran = fake.run(MAIN, "report", path=path, **WIDE)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ran.out.splitlines()]
    assert ["one", "attention", "one_dist 1.0", "ok"] in rows
    assert ["far", "–", "far_dist 1.0", "not loaded: No module named 'torch'"] in rows
    assert ran.status == 0


def test_the_report_says_which_seams_only_pass_through(fake: Fake, path: tuple[Path, ...]) -> None:
    asked = {"INFERA_ATTENTION": "one", "INFERA_MOE": "two"}
    said = fake.run(MAIN, "report", path=path, **WIDE, **asked).out
    for kernel_name, times in {"one": 1, "two": 3}.items():
        assert said.count(f"it only passes through: {kernel_name} can't be bound by it") == times


def test_without_kernels_the_report_says_so(fake: Fake) -> None:
    path = fake.without_plugin()
    assert reported(fake, path) == []
    assert "no kernel is installed" in fake.run(MAIN, "report", path=path, **WIDE).out
