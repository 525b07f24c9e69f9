"""`infera-compat matrix record`: what a release offers, kept as files."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version
from rich.console import Console

from infera_compat import contracts, release
from infera_compat.cli import recorded
from infera_compat.cli.check import STOCK, fetched, parse
from infera_compat.cli.recorded import CONTRACTS, SHIMS, Record
from infera_compat.contracts import Need
from infera_compat.definitions import Definition, Source
from infera_compat.errors import CompatError
from infera_compat.release import Release
from infera_compat.shims import pick

FILES = Path("shims/infera_shims/recorded/files.json")


def record(
    asked: str | None, root: Path | None, distribution: str, checkout: Path, console: Console
) -> int:
    """Record the release `asked`, the one at `root`, or the installed one; 1 if it is refused.

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
    version = None if asked is None else parse(asked)
    found, owner = _found(version, root, distribution, console)
    name = found.text.partition("+")[0]
    source = Source(found.root)
    shim, verdict = pick(found, {})  # every definition is read, known files or not
    for moved in verdict.moved:
        console.print(f"[red]moved[/] {moved}", highlight=False)
    if verdict.moved:
        console.print(f"vLLM {name}: {verdict.held}/{verdict.of}; not recorded")
        return 1
    file = checkout / CONTRACTS / f"{name}.json"
    before = recorded.load(file.read_text("utf-8")) if file.is_file() else None
    files = {owner: contracts.hashes(source, shim.needs)}
    if before is None or owner == STOCK:
        entry = Record(
            release=name,
            shim=shim.name,
            symbols=_offered(source, needs()),
            registered=recorded.registered(found.root),
            files={**(before.files if before else {}), **files},
        )
    else:  # another build of the same: stock's definitions stand
        entry = Record(
            name, shim.name, before.symbols, before.registered, {**before.files, **files}
        )
    file.write_text(entry.dump(), "utf-8")
    _gather(checkout)
    console.print(f"{file}: {owner} {name}, shim {shim.name}, {verdict.held}/{verdict.of}")
    return 0


def again(checkout: Path, console: Console) -> int:
    """Record every recorded release again, in each of its builds; 1 if one is refused."""
    builds = [
        (known.release, owner) for known in recorded.releases().values() for owner in known.files
    ]
    return max(record(release, None, owner, checkout, console) for release, owner in builds)


def needs() -> tuple[Need, ...]:
    """What any shim needs."""
    shims = importlib.import_module(SHIMS).order(None)
    return tuple(dict.fromkeys(need for shim in shims for need in shim.needs))


def _found(
    asked: Version | None, root: Path | None, distribution: str, console: Console
) -> tuple[Release, str]:
    """The release that is meant, and the distribution that it is from."""
    if asked is not None:
        return fetched(distribution, asked, console), distribution
    if root is not None:
        return release.at(root), distribution
    found = release.installed()
    if found is None:
        raise CompatError(
            "no vLLM is installed", found="none", expected="one", do="Give a release, or --root."
        )
    return found, found.distribution or distribution


def _offered(source: Source, wanted: Iterable[Need]) -> dict[str, Definition]:
    """What the release has of all that any shim needs, in the order of the symbols."""
    symbols = sorted({need.symbol for need in wanted})
    found = ((symbol, source.find(symbol)) for symbol in symbols)
    return {symbol: definition for symbol, definition in found if definition is not None}


def _gather(checkout: Path) -> None:
    """All recorded hashes by shim and file: what the plugin reads at start-up."""
    shas: dict[str, dict[str, list[str]]] = {}
    for file in sorted((checkout / CONTRACTS).glob("*.json")):
        known = recorded.load(file.read_text("utf-8"))
        by_file = shas.setdefault(known.shim, {})
        for files in known.files.values():
            for name, sha in files.items():
                by_file[name] = sorted({*by_file.get(name, ()), sha})
    (checkout / FILES).write_text(json.dumps(shas, indent=1, sort_keys=True) + "\n", "utf-8")
    importlib.import_module(SHIMS).recorded.cache_clear()
    recorded.releases.cache_clear()
