"""Source with just the definitions that were recorded of a release, to be judged like a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from infera_compat.definitions import ASYNC, Definition


def write(root: Path, release: str, symbols: Mapping[str, Definition]) -> None:
    """Write the package below `root`, with its version."""
    modules: dict[str, dict[str, Definition]] = {}
    for symbol, definition in symbols.items():
        module, _, name = symbol.partition(":")
        modules.setdefault(module, {})[name] = definition
    for names in modules.values():
        file = root / next(iter(names.values())).place.partition(":")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source(names), "utf-8")
    (root / "__init__.py").write_text("", "utf-8")
    (root / "_version.py").write_text(f"__version__ = {release!r}\n", "utf-8")


def source(names: Mapping[str, Definition]) -> str:
    """The text of a module with these names, "Class.member" among them."""
    owners = dict.fromkeys(name.partition(".")[0] for name in names)
    return "\n".join(line for name in owners for line in _outermost(name, names)) + "\n"


def _outermost(name: str, names: Mapping[str, Definition]) -> Iterator[str]:
    members = {
        inner.partition(".")[2]: definition
        for inner, definition in names.items()
        if inner.startswith(f"{name}.")
    }
    known = names.get(name)
    if known is not None and known.kind != "class":
        yield from _lines(name, known, ())
        return
    yield from (f"@{mark}" for mark in (known.marks if known else ()))
    yield f"class {name}({', '.join(known.bases if known else ())}):"
    attributes = tuple(member for member, each in members.items() if each.kind == "attribute")
    body = list(known.members if known else ())
    body += [member for member in members if member not in _named(body)]
    if attributes and "__init__" not in _named(body):
        body.append("__init__")
    yield "    pass"
    for member in body:
        inner = member.partition(":")[0]
        if inner in attributes:
            continue
        if ":" in member:
            yield f"    {member}"
            continue
        set_here = {each: members[each] for each in attributes} if inner == "__init__" else {}
        lines = _lines(inner, members.get(inner), tuple(set_here.items()))
        yield from (f"    {line}" for line in lines)


def _named(members: list[str]) -> set[str]:
    return {member.partition(":")[0] for member in members}


def _lines(
    name: str, known: Definition | None, attributes: tuple[tuple[str, Definition], ...]
) -> Iterator[str]:
    if known is not None and known.kind == "variable":
        yield f"{name} = some.thing" if known.type is None else f"{name}: {known.type}"
        return
    yield from (f"@{mark}" for mark in (known.marks if known else ()))
    given = dict(known.defaults if known else ())
    words = [
        f"{word}={given[word]}" if word in given else word
        for word in ((known.parameters or ()) if known else ("self",))
    ]
    start = ASYNC if known is not None and known.kind.startswith(ASYNC) else ""
    yield f"{start}def {name}({', '.join(words)}):"
    yield "    pass"
    for attribute, each in attributes:
        yield f"    self.{attribute}{f': {each.type}' if each.type else ''} = None"
