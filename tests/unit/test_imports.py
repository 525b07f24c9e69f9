"""Something is run right after a module was imported, and never imports it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infera_compat import imports

NAME = "watched_module"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported; nothing of it is left behind."""
    before = list(sys.meta_path)
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop(NAME, None)
    imports._watcher.waiting.clear()
    sys.meta_path[:] = before


def test_it_waits_for_the_import_and_sees_the_whole_module(module: Path) -> None:
    seen: list[int] = []
    imports.when_imported(NAME, lambda found: seen.append(found.value))
    assert (seen, NAME in sys.modules) == ([], False)
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert seen == [1]


def test_what_is_imported_already_is_seen_at_once(module: Path) -> None:
    importlib.import_module(NAME)
    seen: list[int] = []
    imports.when_imported(NAME, lambda found: seen.append(found.value))
    assert seen == [1]


def test_several_wait_in_their_order(module: Path) -> None:
    seen: list[str] = []
    for word in ("first", "second"):
        imports.when_imported(NAME, lambda found, word=word: seen.append(word))  # type: ignore[misc]
    importlib.import_module(NAME)
    assert seen == ["first", "second"]


def test_the_module_is_as_if_it_was_imported_without_us(module: Path) -> None:
    plain = importlib.import_module(NAME)
    loader = type(plain.__loader__)
    del sys.modules[NAME]
    imports.when_imported(NAME, lambda found: None)
    watched = importlib.import_module(NAME)
    assert watched.__spec__ is not None
    assert (type(watched.__loader__), watched.__spec__.origin) == (loader, str(module))
    assert "exec_module" not in vars(watched.__loader__)
    importlib.reload(watched)


def test_an_error_of_the_module_itself_is_its_own_and_the_next_import_is_seen(module: Path) -> None:
    module.write_text("1 / 0\n")
    seen: list[int] = []
    imports.when_imported(NAME, lambda found: seen.append(found.value))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    module.write_text("value = 2  # mended\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [2]


def test_looking_for_the_module_is_not_importing_it(module: Path) -> None:
    seen: list[int] = []
    imports.when_imported(NAME, lambda found: seen.append(found.value))
    assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]


def test_a_module_that_is_not_there_stays_not_found(module: Path) -> None:
    imports.when_imported("no_such_module_at_all", lambda found: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        importlib.import_module("no_such_module_at_all")


def test_one_that_raises_keeps_what_waits_behind_it(module: Path) -> None:
    def refuse(found: object) -> None:
        raise RuntimeError("stop")

    seen: list[int] = []
    imports.when_imported(NAME, refuse)
    imports.when_imported(NAME, lambda found: seen.append(found.value))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stop"):
            importlib.import_module(NAME)
    assert NAME not in sys.modules
