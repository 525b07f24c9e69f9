"""Tuned settings between starts: found again, never wrong, and never the cause of a lost start."""

from __future__ import annotations

import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infera_compat.kernels.store import Store

VERSIONS = {"torch": "2.9.1", "triton": "3.5.1"}
ABOUT: dict[str, Any] = {
    "kernel": "one",
    "version": "1.0",
    "gpu": "NVIDIA H200",
    "built_with": VERSIONS,
}


def store(folder: Path | None, **other: Any) -> Store:
    return Store(folder, **(ABOUT | other))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_put_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    assert store(tmp_path).get("key") is None
    assert files(tmp_path) == []
    store(tmp_path).put("key", {"block": 64, "pair": (1, 2)})
    assert store(tmp_path).get("key") == {"block": 64, "pair": [1, 2]}
    store(tmp_path).put("key", {"block": 32})
    assert store(tmp_path).get("key") == {"block": 32}
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": "two"},
        {"version": "1.1"},
        {"gpu": "NVIDIA L4"},
        {"built_with": VERSIONS | {"triton": "3.6.0"}},
        {"built_with": None},
    ],
)
def test_what_another_kernel_machine_or_compiler_found_is_not_taken(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    store(tmp_path).put("key", {"block": 64})
    assert store(tmp_path, **other).get("key") is None
    store(tmp_path, **other).put("key", {"block": 32})
    assert store(tmp_path).get("key") == {"block": 64}


floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(kept=st.dictionaries(st.text(), st.dictionaries(st.text(), values, max_size=4), max_size=3))
def test_any_keys_and_values_come_back(
    kept: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = store(tmp_path_factory.getbasetemp() / "any")
    for key, value in kept.items():
        here.put(key, value)
    assert {key: here.get(key) for key in kept} == kept


def damaged(text: bytes) -> list[bytes]:
    body = json.loads(text)
    return [
        b"",
        text[:-1],
        b"\xff\x00",
        b"[" * 100_000,
        b"[]",
        b"null",
        json.dumps(body | {"value": [1]}).encode(),
        json.dumps(body | {"gpu": "NVIDIA L4"}).encode(),
        json.dumps(body | {"key": "other"}).encode(),
        json.dumps({"value": body["value"]}).encode(),
    ]


def test_a_damaged_file_is_nothing_and_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = store(tmp_path)
    here.put("key", {"block": 64})
    (path,) = files(tmp_path)
    for text in damaged(path.read_bytes()):
        path.write_bytes(text)
        assert here.get("key") is None
        assert files(tmp_path) == []
    here.put("key", {"block": 32})
    assert here.get("key") == {"block": 32}
    assert caplog.records == []


def test_a_folder_that_cant_be_used_is_told_once_and_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A file in a folder's place: permissions would not stop root.
    (tmp_path / "kernels").write_text("in the way")
    here = store(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            here.put("key", {"block": 64})
            assert here.get("key") is None
    (record,) = caplog.records
    assert all(part in record.getMessage() for part in ("one", str(tmp_path), "INFERA_CACHE_DIR"))


def test_a_write_that_fails_leaves_what_was_there_and_no_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = store(tmp_path)
    here.put("key", {"block": 64})

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    here.put("key", {"block": 32})
    assert here.get("key") == {"block": 64}
    assert len(files(tmp_path)) == 1
    assert "No space left" in caplog.text


def test_without_a_folder_nothing_is_kept_and_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = store(None)
    here.put("key", {"block": 64})
    assert here.get("key") is None
    assert caplog.records == []


@pytest.mark.parametrize("value", [{"block": object()}, {"block": float("nan")}])
def test_what_is_no_json_is_the_kernels_mistake(tmp_path: Path, value: dict[str, Any]) -> None:
    for folder in (tmp_path, None):
        with pytest.raises((TypeError, ValueError)):
            store(folder).put("key", value)


def write_and_read(folder: Path, number: int) -> list[Any]:
    """One process of several: what it reads between its writes."""
    here, seen = store(folder), []
    for turn in range(30):
        here.put("key", {"number": number, "turn": turn, "long": "x" * 20_000})
        seen.append(here.get("key"))
    return seen


def test_several_processes_read_only_what_one_of_them_wrote_whole(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(write_and_read, [(tmp_path, number) for number in range(3)])
    seen = [value for values in found for value in values]
    assert all(value is not None and len(value["long"]) == 20_000 for value in seen)
    assert len(files(tmp_path)) == 1
