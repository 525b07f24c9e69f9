"""Real engines of the vLLM that is installed here, each way of running it once a session."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

from infera_compat.install import Installation
from infera_compat.release import Release, installed
from infera_compat.settings import Settings
from infera_compat.shims import pick
from infera_shims.engines import child

LINES = tomllib.loads(Path(__file__, "../../../matrix/releases.toml").resolve().read_text("utf-8"))
NEWEST = [release for release, line in LINES["release"].items() if "cpu" in line][-1]
# Six changes, each in two engines of its own, take four minutes: they run on the newest CPU build.
if NEWEST not in str(installed()):
    collect_ignore = ["test_mutated_engine.py"]

PASSING = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough", "INFERA_STRICT": "1"}
HERE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
APART = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
DENSE, MOE = "qwen3", "qwen3_moe"
OURS = re.compile(r"infera.compat \d|infera.compat: ")


@dataclass(frozen=True)
class Run:
    """What an engine run gave: its results (infera_shims.engines.generate), and its output."""

    models: dict[str, dict[str, Any]]
    lines: list[str]
    report: Path

    def requests(self, model: str) -> Any:
        return self.models[model]["requests"]

    def our_lines(self) -> list[str]:
        return [line for line in self.lines if OURS.search(line)]


@pytest.fixture(scope="session")
def release() -> Release:
    found = installed()
    assert found is not None, "these tests need a vLLM: run them by tox"
    return found


@pytest.fixture(scope="session")
def shim(release: Release) -> Any:
    chosen, verdict = pick(release)
    assert not verdict.moved
    return chosen


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for kind in (DENSE, MOE):
        child.spawn("infera_shims.engines.weights", [kind, str(folder / kind)], child.environment())
    return {kind: folder / kind for kind in (DENSE, MOE)}


@pytest.fixture(scope="session")
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all runs of a session: what a run compiles, the next one finds."""
    return tmp_path_factory.mktemp("vllm-cache")


@pytest.fixture(scope="session")
def start(
    models: dict[str, Path], cache_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Run]:
    """Start engines for `kinds`, one after the other, from one process."""

    def start(
        name: str,
        kinds: tuple[str, ...],
        compiled: bool,
        report: bool,
        dtype: str = "bfloat16",
        arguments: Mapping[str, Any] | None = None,
        **environ: str,
    ) -> Run:
        lines: list[str] = []
        file = tmp_path_factory.mktemp(name) / "report.jsonl"
        job = {
            "report": report,
            "models": [
                {
                    "name": kind,
                    "path": str(models[kind]),
                    "prompts": [{"token_ids": prompt(seed, n)} for seed, n in PROMPTS],
                    "engine": {"enforce_eager": not compiled, "dtype": dtype, **(arguments or {})},
                }
                for kind in kinds
            ],
        }
        env = child.environment(VLLM_CACHE_ROOT=str(cache_root), INFERA_REPORT=str(file), **environ)
        results = child.run(job, env, echo=lines.append)
        return Run(results["models"], lines, file)

    return start


# (seed, length): odd, one block and less, several blocks.
PROMPTS = ((0, 5), (1, 17), (2, 40), (3, 130))


def prompt(seed: int, length: int) -> list[int]:
    """Token ids that differ from prompt to prompt and within one."""
    return [(7 * i * (seed + 3) + 11 * seed) % 500 + 5 for i in range(length)]


Starts = Callable[[str], Run]


@pytest.fixture(scope="session")
def run(start: Callable[..., Run]) -> Starts:
    """A way of running, by name; each is started once, when a test first asks for it."""
    both = (DENSE, MOE)
    off = {"INFERA_VLLM_OPS_DISABLE": "1"}
    ways: dict[str, Callable[[], Run]] = {
        "absent": lambda: start("absent", both, False, False, VLLM_PLUGINS="", **HERE),
        "off": lambda: start("off", both, False, False, **off, **HERE),
        "auto": lambda: start("auto", (DENSE,), False, True, **HERE),
        "passthrough": lambda: start("passthrough", both, False, True, **PASSING, **HERE),
        "platform": lambda: start(
            "platform", both, False, True, INFERA_ATTENTION_SEAM="platform", **PASSING, **HERE
        ),
        # From here on: torch.compile, and the engine core in a process of its own.
        "off compiled": lambda: start("off-c", both, True, False, **off, **APART),
        "passthrough compiled": lambda: start("pass-c", (MOE,), True, True, **PASSING, **APART),
        "platform compiled": lambda: start(
            "platform-c", (DENSE,), True, True, INFERA_ATTENTION_SEAM="platform", **PASSING, **APART
        ),
        "off again compiled": lambda: start("off-again-c", (MOE,), True, False, **off, **APART),
    }
    return functools.cache(lambda name: ways[name]())


@pytest.fixture
def planned() -> Installation:
    """What would be bound here with both ops passing through, judged without an engine."""
    installation = Installation(Settings(attention="passthrough", moe="passthrough"))
    installation.judge()
    return installation
