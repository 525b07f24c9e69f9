"""`infera-compat matrix record`: what a release offers, kept as files."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from infera_compat import contracts, release
from infera_compat.definitions import Source
from infera_compat.errors import CompatError
from infera_compat.install import pick

CONTRACTS = Path("matrix/contracts")
FILES = Path("shims/infera_shims/recorded/files.json")


def record(root: Path | None, distribution: str, checkout: Path, console: Console) -> int:
    """Record the release at `root` (or the installed one) into the checkout; 1 if it is refused.

    A release whose contracts do not all hold is not recorded: its hashes must never spare it the
    comparison.
    """
    if not (checkout / CONTRACTS).is_dir():
        raise CompatError(
            f"{checkout.absolute()} is no checkout of infera-compat",
            found=f"no {CONTRACTS}",
            expected="the project's root",
            do="Run this there, or give --checkout.",
        )
    found = release.installed() if root is None else release.at(root)
    if found is None:
        raise CompatError("no vLLM is installed", found="none", expected="one", do="Give --root.")
    owner = distribution if root else (found.distribution or distribution)
    shim, verdict = pick(found)
    for moved in verdict.moved:
        console.print(f"[red]moved[/] {moved}", highlight=False)
    if verdict.moved:
        console.print(f"vLLM {found.text}: {verdict.held}/{verdict.of}; not recorded")
        return 1
    file = checkout / CONTRACTS / f"{found.text.partition('+')[0]}.json"
    before: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    source = Source(found.root)
    found_definitions = [source.find(need.symbol) for need in shim.needs]
    entry = {
        "release": found.text.partition("+")[0],
        "shim": shim.name,
        "symbols": {
            definition.symbol: asdict(definition)
            for definition in found_definitions
            if definition is not None
        },
        "files": before.get("files", {}) | {owner: contracts.hashes(source, shim.needs)},
    }
    file.write_text(json.dumps(entry, indent=1) + "\n", "utf-8")
    _gather(checkout)
    console.print(f"{file}: {owner} {found.text}, shim {shim.name}, {verdict.held}/{verdict.of}")
    return 0


def _gather(checkout: Path) -> None:
    """All recorded hashes by shim and file: what the plugin reads at start-up."""
    shas: dict[str, dict[str, list[str]]] = {}
    for file in sorted((checkout / CONTRACTS).glob("*.json")):
        entry = json.loads(file.read_text("utf-8"))
        by_file = shas.setdefault(entry["shim"], {})
        for files in entry["files"].values():
            for name, sha in files.items():
                by_file[name] = sorted({*by_file.get(name, ()), sha})
    (checkout / FILES).write_text(json.dumps(shas, indent=1, sort_keys=True) + "\n", "utf-8")
    importlib.import_module("infera_shims").recorded.cache_clear()
