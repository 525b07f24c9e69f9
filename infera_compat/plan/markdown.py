"""Markdown that no name or reason in it can break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTHING = "–"


def flat(text: object) -> str:
    """A text in one line, in which nothing is taken for markup of a table or of HTML."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def code(text: object) -> str:
    """A name or a command, as code; it has neither a backtick nor a bar in it."""
    return f"`{text}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; an empty cell gets a dash."""
    lines = [heads, ["---"] * len(heads)]
    lines += [[flat(cell) or NOTHING for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def items(texts: Iterable[object]) -> str:
    """A list."""
    return "\n".join(f"- {flat(text)}" for text in texts)


def joined(values: Iterable[object]) -> str:
    """Distinct values in one cell, in their order."""
    return ", ".join(dict.fromkeys(map(str, values)))
