"""JSON that earlier runs wrote: read with a word on what is wrong, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infera_compat.errors import CompatError


def load(file: Path) -> dict[str, Any]:
    """The JSON object in a file; raises CompatError where it can't be read or is none."""
    try:
        body = json.loads(file.read_text("utf-8"))
        if not isinstance(body, dict):
            raise ValueError(f"a JSON {type(body).__name__}")
    except (OSError, ValueError, RecursionError) as error:  # it may be nested without end
        raise damaged(file, str(error), "a JSON object") from error
    return body


def damaged(file: Path, found: str, expected: str) -> CompatError:
    """What is raised for a file that does not hold what it should."""
    return CompatError(
        f"{file} is damaged",
        found=found,
        expected=expected,
        do=f"Restore it (git checkout -- {file}), or remove it, with what it says.",
    )


def put(file: Path, text: str) -> None:
    """Put a text in the place of a file: what was there stays until all of it is written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(text, "utf-8")
    partial.replace(file)


def put_json(file: Path, body: Mapping[str, Any]) -> None:
    """The same with a JSON object."""
    put(file, json.dumps(body, indent=1) + "\n")


@contextmanager
def writing(what: str, file: Path, option: str) -> Iterator[None]:
    """Turn a file that can't be written in here into a CompatError; option: what names another."""
    try:
        yield
    except OSError as error:
        raise CompatError(
            f"{what} can't be written to {file}",
            found=str(error),
            expected="a file that can be written",
            do=f"Give another {option}.",
        ) from error
