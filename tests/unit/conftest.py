from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_kernels import Shelf
from fake_kernels import shelf as make_shelf
from fake_vllm import Fake, build
from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """The newest line of releases on a CPU."""
    return build(tmp_path / "site")


@pytest.fixture
def make_fake(tmp_path: Path) -> Callable[..., Fake]:
    """Build a fake vLLM of another line, device or habit; see fake_vllm.build."""

    def make(line: str = "main", **habits: object) -> Fake:
        return build(tmp_path / f"site-{line}", line, **habits)  # type: ignore[arg-type]

    return make


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A folder on this process's path for distributions with kernels; no others are found."""
    with make_shelf(tmp_path / "shelf", monkeypatch) as made:
        yield made
