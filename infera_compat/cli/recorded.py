"""What is recorded of each supported release: matrix/contracts/<release>.json."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from packaging.version import Version

from infera_compat.definitions import Definition

CONTRACTS = Path("matrix/contracts")
SHIMS = "infera_shims"
REGISTRIES = {"CustomOp": "ops", "PluggableLayer": "layers"}
"""The classes of vLLM that keep a registry by name, and what the names in it are of."""

Registered = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Record:
    """One release.

    symbols: what it has of all that any shim needs. registered: its names of ops and of layers,
    each with the classes that are registered under it. files: by distribution and file, the SHA-256
    of what its own shim reads.
    """

    release: str
    shim: str
    symbols: Mapping[str, Definition]
    registered: Registered
    files: Mapping[str, Mapping[str, str]]

    def dump(self) -> str:
        """The record as JSON: a line for each symbol, name and file."""
        symbols = {symbol: _lean(definition) for symbol, definition in self.symbols.items()}
        parts = (
            ("release", json.dumps(self.release)),
            ("shim", json.dumps(self.shim)),
            ("symbols", _lines(symbols)),
            ("registered", _lines(self.registered, levels=2)),
            ("files", _lines(self.files, levels=2)),
        )
        return "{\n" + ",\n".join(f' "{name}": {text}' for name, text in parts) + "\n}\n"


def load(text: str) -> Record:
    """The record that `dump` wrote."""
    entry = json.loads(text)
    symbols = {symbol: _whole(symbol, known) for symbol, known in entry["symbols"].items()}
    return Record(entry["release"], entry["shim"], symbols, entry["registered"], entry["files"])


@cache
def releases() -> dict[str, Record]:
    """All records, oldest release first; what is recorded is what is supported.

    From the checkout that this package lies in, else from the data of its wheel.
    """
    package = importlib.import_module(SHIMS)
    checkout = Path(str(package.__file__)).parents[2] / CONTRACTS
    folder = checkout if checkout.is_dir() else resources.files(package) / "recorded" / "contracts"
    texts = (file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".json"))
    return {known.release: known for known in in_order(map(load, texts))}


def in_order(records: Iterable[Record]) -> list[Record]:
    """The same, oldest release first."""
    return sorted(records, key=lambda known: Version(known.release))


def registered(root: Path) -> Registered:
    """Every name that a package's source registers an op or a layer under, with its classes."""
    found: Registered = {kind: {} for kind in REGISTRIES.values()}
    for file in sorted(root.rglob("*.py")):
        source = file.read_bytes()
        if not any(f"@{registry}.register(".encode() in source for registry in REGISTRIES):
            continue
        module = ".".join((root.name, *file.relative_to(root).with_suffix("").parts))
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ClassDef):
                continue
            for kind, name in _names(node):
                found[kind].setdefault(name, []).append(f"{module}:{node.name}")
    return {kind: dict(sorted(names.items())) for kind, names in found.items()}


def _names(node: ast.ClassDef) -> Iterable[tuple[str, str]]:
    """Of which kind, and under which name, a class's decorators register it."""
    for mark in node.decorator_list:
        if not isinstance(mark, ast.Call) or not mark.args:
            continue
        registry, _, method = ast.unparse(mark.func).rpartition(".")
        name = mark.args[0]
        if registry in REGISTRIES and method == "register" and isinstance(name, ast.Constant):
            yield REGISTRIES[registry], str(name.value)


def _lean(definition: Definition) -> dict[str, Any]:
    """The fields that say something; the symbol is the key already."""
    entry = asdict(definition)
    del entry["symbol"]
    return {
        name: value
        for name, value in entry.items()
        if value or (name == "parameters" and value is not None)
    }


def _whole(symbol: str, known: Mapping[str, Any]) -> Definition:
    given = {name: _frozen(value) for name, value in known.items()}
    empty = {
        field.name: None if field.name in ("parameters", "type") else ()
        for field in fields(Definition)
    }
    return Definition(**{**empty, **given, "symbol": symbol})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _lines(entries: Mapping[str, Any], levels: int = 1, indent: int = 2) -> str:
    """A JSON object with a line for each entry, `levels` deep."""
    lines = []
    for name, value in entries.items():
        text = json.dumps(value) if levels == 1 else _lines(value, levels - 1, indent + 1)
        lines.append(f"{' ' * indent}{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{' ' * (indent - 1)}}}" if lines else "{}"
