"""`infera-compat matrix run | support`: every release against stock, and the tables of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from infera_compat.errors import CompatError
from infera_compat.matrix import gpu, releases
from infera_compat.matrix import support as tables
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.runner import Matrix, Outcome
from infera_compat.matrix.screen import LiveScreen, show
from infera_shims.engines import child


def run(
    root: Path, names: Sequence[str], jobs: int, fresh: bool, as_json: bool, console: Console
) -> int:
    """Run these releases (none: all), then write the tables.

    Returns:
        0 if no cell failed and none is left unrun, 1 if one is or something could not be written,
        130 and 143 if Ctrl-C and SIGTERM stopped it.
    """
    checkout = Checkout.at(root)
    lines = releases.chosen(releases.read(checkout.releases), names)
    told = Console(stderr=True) if as_json else console
    with checkout.alone():
        try:
            with LiveScreen(told, len(lines), jobs) as screen:
                outcome = Matrix(checkout, screen, jobs=jobs, fresh=fresh).run(lines)
        except child.ChildError as error:
            if as_json:
                print(json.dumps({"error": {"what": str(error)}}, indent=1))
            told.print(Text(f"infera-compat matrix stopped: {error}", style="red"), soft_wrap=True)
            return 1
        unwritten = _write_tables(checkout)
    if as_json:
        print(json.dumps(_as_dict(outcome) | {"tables": unwritten}, indent=1))
    else:
        show(console, outcome)
    if unwritten is not None:
        print(f"The tables are not written: {unwritten}", file=sys.stderr)
    return outcome.status or int(unwritten is not None)


def _write_tables(checkout: Checkout) -> str | None:
    """Write the tables; what keeps them from it is no reason to keep quiet about the run."""
    try:
        tables.write(checkout)
    except (CompatError, OSError) as error:
        return str(error)
    return None


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        "stopped": outcome.stopped is not None,
        "cells": outcome.counts(),
        "failures": outcome.failures,
        "bad": [{"release": release, **asdict(cell)} for release, cell in outcome.bad],
    }


def support(root: Path, measured: Sequence[Path], console: Console) -> int:
    """Take in what a GPU machine measured, and write the tables from what is recorded."""
    checkout = Checkout.at(root)
    for file in measured:
        console.print(f"{file}: taken into {gpu.take(checkout, file)}'s result", highlight=False)
    for file in tables.write(checkout):
        console.print(str(file), highlight=False)
    return 0
