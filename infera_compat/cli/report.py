"""`infera-compat report`: what is known without an engine, or from a run's INFERA_REPORT file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infera_compat import install
from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.kernels import registry
from infera_compat.kernels.kernel import OPS as KERNEL_OPS
from infera_compat.ledger import Choice
from infera_compat.plugin import read_settings
from infera_compat.settings import AUTO, REPORT, SEAMS, Settings, disabled

FIELDS = {"event", "pid", "process", "role", "rank", "vllm", "steps", "layers", "unknown_layers"}
LAYER_FIELDS = {
    *("op", "layer", "over", "seam", "kernel"),
    *("calls", "bound", "why_not", "shared_with"),
}
DEVICES = ("cuda", "cpu")
PHASES = ("serving", "profile", "capture", "replayed")
PLUGIN = "infera_compat"
"""Our entry points' name: what VLLM_PLUGINS, where it is set, must have among its names."""

NOT_KNOWN = (
    "not known yet: layers are known where a model is built (INFERA_REPORT=file, then --from)"
)


def here(environ: Mapping[str, str], as_json: bool, console: Console) -> int:
    """Report on the installed vLLM and the settings in `environ`; 0 if every contract holds."""
    off = disabled(environ)
    installation = install.Installation(_settings(environ, off))
    installation.judge()
    kernels = _kernels()
    gpu = _gpu()
    plans = {op: _plans(installation, op, gpu) for op in install.OPS}
    for choice in installation.ledger.choices.values():
        _look(installation, choice, gpu)
    found = installation.as_json()
    facts = {
        "disabled": off,
        "loaded": _loaded(environ),
        "misspelt": dict(installation.settings.misspelt),
        **{
            key: found[key]
            for key in ("infera_compat", "vllm", "distribution", "shim", "contracts")
        },
        "ops": {
            op: {key: value for key, value in choice.items() if key != "not_taken"}
            | {"seams": plans[op]}
            for op, choice in found["ops"].items()
        },
        "gpu": gpu,
        "kernels": kernels,
        "layers": None,
        "layers_note": NOT_KNOWN,
    }
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        _show_here(facts, str(installation.release), console)
    return 1 if found["contracts"]["moved"] else 0


def _settings(environ: Mapping[str, str], off: bool) -> Settings:
    """The settings; switched off, nothing reads them, so a bad one stops no start."""
    try:
        return read_settings(environ)
    except CompatError:
        if not off:
            raise
        return Settings()


def _kernels() -> list[dict[str, str | None]]:
    """Each kernel that is installed: of what op and whose, and why it can't be had, if it can't.

    Imports them, and so torch.
    """
    found = registry.find()
    # What somebody else's module prints is no part of our JSON.
    with redirect_stdout(sys.stderr):
        kernels, broken = found.load_all()
    rows: list[tuple[registry.Entry, str | None, str, str | None]] = [
        *((found.entries[name], kernel.op, "ok", None) for name, kernel in kernels.items()),
        *((x.entry, None, "not loaded" if x.missing else "broken", str(x)) for x in broken),
    ]
    return [
        {
            "name": entry.name,
            "op": op,
            "distribution": entry.distribution,
            "version": entry.version,
            "state": state,
            "why_not": why_not,
        }
        for entry, op, state, why_not in sorted(rows, key=lambda row: row[0])
    ]


def _gpu() -> str | None:
    """The name of the first GPU, where torch sees one; it was imported with the kernels."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None


def _look(installation: install.Installation, choice: Choice, gpu: str | None) -> None:
    """What `auto` would choose here, for a model of any kind, unless vLLM is told a backend."""
    if choice.asked == AUTO and gpu is not None:
        kinds = tuple(kind for kind, op in KERNEL_OPS.items() if op == choice.op)
        installation.choose_automatically(choice, gpu, kinds)


def _loaded(environ: Mapping[str, str]) -> bool:
    """Whether vLLM will load us: it compares the names in VLLM_PLUGINS to the letter."""
    allowed = environ.get("VLLM_PLUGINS")
    return allowed is None or PLUGIN in allowed.split(",")


def from_file(path: Path, as_json: bool, console: Console) -> int:
    """Report on what the processes of a run wrote to `path`; 0 if all that was bound has fired."""
    latest = read_events(path)
    if as_json:
        print(json.dumps(latest, indent=1))
    else:
        _show_processes(latest, console)
    served = [entry for entry in latest if entry["event"] == "served"]
    return 1 if any(unfired(entry) for entry in served) else 0


def read_events(path: Path) -> list[dict[str, Any]]:
    """The last event of each process in a file of INFERA_REPORT's lines."""
    if not path.is_file():
        raise CompatError(
            "there is no report to read",
            found=f"no file {path}",
            expected=f"a file that a run wrote with {REPORT}={path}",
            do="Run vLLM with it set first.",
        )
    latest: dict[tuple[int, str], dict[str, Any]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            if missing := FIELDS - set(entry):
                raise ValueError(f"no {', '.join(sorted(missing))}")
            if not all(map(_is_layer, entry["layers"])):
                raise ValueError("layers of another make")
            latest[entry["pid"], entry["process"]] = entry
        except (ValueError, TypeError) as error:
            raise CompatError(
                f"line {number} of {path} is not one of infera-compat's",
                found=f"{line[:80].decode('utf-8', 'replace')!r} ({error})",
                expected=f"a JSON object with {', '.join(sorted(FIELDS))}",
                do=f"Give the file that {REPORT} named.",
            ) from error
    if not latest:
        raise CompatError(
            "there is no report to read",
            found=f"nothing in {path}",
            expected="a line of each process of a run",
            do=f"Run vLLM with {REPORT}={path}, and look whether it loads infera-compat.",
        )
    return list(latest.values())


def _is_layer(layer: Any) -> bool:
    return set(layer) >= LAYER_FIELDS and set(layer["calls"]) >= set(PHASES)


def unfired(entry: Mapping[str, Any]) -> list[str]:
    """The bound layers that no served step ran, in a process that served."""
    return [
        layer["layer"]
        for layer in entry["layers"]
        if layer["bound"]
        and not (layer["calls"]["serving"] or layer["calls"]["replayed"])
        # A layer that only graphs hold runs no Python, and its replays may not be counted.
        and not (layer["calls"]["capture"] and layer["calls"]["replayed"] is None)
    ]


def _show_here(facts: dict[str, Any], release: str, console: Console) -> None:
    contracts = facts["contracts"]
    console.print(
        f"infera-compat {facts['infera_compat']} on vLLM {release}: shim {facts['shim']}, "
        f"contracts {contracts['held']}/{contracts['of']}"
        + (" (files of a recorded release)" if contracts["known_files"] else ""),
        highlight=False,
    )
    if facts["disabled"]:
        console.print(f"[yellow]{OFF_SWITCH}: all of it is switched off, vLLM runs stock.[/]")
    if not facts["loaded"]:
        console.print(
            f"[yellow]VLLM_PLUGINS is set and does not name {PLUGIN}: vLLM will not load us, and "
            "runs stock.[/]",
            soft_wrap=True,
        )
    for name, likely in facts["misspelt"].items():
        said = f"{name} is set and means nothing; did you mean {likely}?"
        console.print(f"[yellow]{escape(said)}[/]", soft_wrap=True)
    for moved in contracts["moved"]:
        console.print(f"  [red]moved[/] {escape(moved)}", highlight=False, soft_wrap=True)
    table = Table("op", "asked", "kernel")
    table.add_column("seam", no_wrap=True)
    table.add_column("", overflow="fold")
    for op, choice in facts["ops"].items():
        table.add_section()
        table.add_row(
            op, choice["asked"], choice["kernel"] or "–", "", escape(choice["why_not"] or "")
        )
        for kernel, why in choice["not_chosen"].items():
            table.add_row("", "", escape(kernel), "", escape(f"not chosen: {why}"))
        for seam, fate in choice["seams"].items():
            table.add_row("", "", "", seam, escape(fate))
    console.print(table)
    console.print(_kernel_table(facts["kernels"]))
    console.print(f"layers: {NOT_KNOWN}", highlight=False)


def _kernel_table(kernels: list[dict[str, str | None]]) -> Table:
    table = Table(title=None if kernels else "no kernel is installed", title_justify="left")
    table.add_column("kernel", no_wrap=True)
    table.add_column("op")
    table.add_column("from")
    table.add_column("state", overflow="fold")
    for kernel in kernels:
        table.add_row(
            escape(str(kernel["name"])),
            kernel["op"] or "–",
            escape(f"{kernel['distribution']} {kernel['version']}"),
            escape(kernel["why_not"] or str(kernel["state"])),
        )
    return table


def _plans(installation: install.Installation, op: str, gpu: str | None) -> dict[str, str]:
    """What would become of each seam of an op: taken, where, or why not."""
    fates: dict[str, str] = {}
    taken: dict[str, list[str]] = {}
    for device in DEVICES:
        choice = installation.choose(op)
        if device in install.MEASURED_ON:
            _look(installation, choice, gpu)
        for seam in installation.plan(choice, device):
            taken.setdefault(seam, []).append(device)
        fates |= choice.not_taken
    fates |= {seam: f"taken on {' and '.join(on)}" for seam, on in taken.items()}
    return {seam: fates[seam] for seam in SEAMS[op]}


def _show_processes(latest: list[dict[str, Any]], console: Console) -> None:
    table = Table(
        "process", "pid", "rank", "role", "last event", "steps", "bound", "fired", "stock"
    )
    for entry in latest:
        layers = entry["layers"]
        bound = sum(layer["bound"] for layer in layers)
        table.add_row(
            entry["process"],
            str(entry["pid"]),
            "–" if entry["rank"] is None else str(entry["rank"]),
            entry["role"],
            entry["event"],
            str(entry["steps"]),
            str(bound),
            str(bound - len(unfired(entry))) if entry["event"] == "served" else "–",
            str(len(layers) - bound),
        )
    console.print(table)
    for entry in latest:
        if entry["layers"]:
            _show_layers(entry, console)


def _show_layers(entry: dict[str, Any], console: Console) -> None:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{entry['process']}, pid {entry['pid']}, vLLM {entry['vllm']}: calls of each layer",
        title_justify="left",
    )
    table.add_column("op")
    table.add_column("layer", overflow="fold")
    for name in ("over", "seam", "kernel"):
        table.add_column(name, overflow="fold")
    for name in PHASES:
        table.add_column(name, justify="right")
    for layer in entry["layers"]:
        calls = layer["calls"]
        seam = layer["seam"] if layer["bound"] else f"stock: {layer['why_not']}"
        if layer["shared_with"]:
            seam += f", before {layer['shared_with']}"
        table.add_row(
            *map(escape, (layer["op"], layer["layer"], layer["over"], seam)),
            escape(layer["kernel"] or "–"),
            *("–" if calls[phase] is None else str(calls[phase]) for phase in PHASES),
        )
    console.print(table)
    for layer in entry["unknown_layers"]:
        name = escape(f"{layer['op']} {layer['layer']}")
        console.print(f"[yellow]ran but is no layer of the model: {name}[/]")
    for name in unfired(entry) if entry["event"] == "served" else ():
        console.print(f"[red]bound but never fired: {escape(name)}[/]")
