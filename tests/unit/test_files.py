"""What runs write: whole or not at all, in a place that takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infera_compat.errors import CompatError
from infera_compat.matrix import files


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "gpu.json"
    files.put(file, "first")
    write = Path.write_text

    def cut_off(path: Path, text: str, encoding: str) -> int:
        write(path, text[: len(text) // 2], encoding)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut_off)
    with pytest.raises(KeyboardInterrupt):
        files.put(file, "the second one")
    assert file.read_text("utf-8") == "first"
    assert [each.name for each in file.parent.glob("*.json")] == ["gpu.json"]


def test_a_place_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", "utf-8")
    file = tmp_path / "taken" / "gpu.json"
    with (
        pytest.raises(
            CompatError, match=r"the table can't be written to .*gpu\.json\. Found: .*ta"
        ),
        files.writing("the table", file, "--folder"),
    ):
        files.put_json(file, {})


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_what_is_no_object_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text, "utf-8")
    with pytest.raises(CompatError, match=r"a\.json is damaged"):
        files.load(file)
