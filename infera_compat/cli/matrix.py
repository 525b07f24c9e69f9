"""`infera-compat matrix run | support`: every release against stock, and the tables of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from infera_compat.matrix import gpu, releases
from infera_compat.matrix import support as tables
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.runner import Matrix
from infera_compat.matrix.screen import LiveScreen, show
from infera_shims.engines import child

STOPPED = 130
"""The status of a program that Ctrl-C ended."""


def run(
    root: Path, names: Sequence[str], jobs: int, fresh: bool, as_json: bool, console: Console
) -> int:
    """Run these releases (none: all), then write the tables.

    Returns:
        0 if no cell failed and none is left unrun, 1 if one is, 130 if it was stopped.
    """
    checkout = Checkout.at(root)
    lines = releases.chosen(releases.read(checkout.releases), names)
    screen = LiveScreen(Console(stderr=True) if as_json else console, len(lines), jobs)
    try:
        with screen:
            outcome = Matrix(checkout, screen, jobs=jobs, fresh=fresh).run(lines)
    except child.ChildError as error:
        console.print(Text(f"infera-compat matrix stopped: {error}", style="red"), soft_wrap=True)
        return 1
    tables.write(checkout)
    if as_json:
        bad = [{"release": release, **asdict(cell)} for release, cell in outcome.bad]
        body = {"stopped": outcome.stopped, "cells": outcome.counts(), "bad": bad}
        print(json.dumps(body, indent=1))
    else:
        show(console, outcome)
    return STOPPED if outcome.stopped else int(bool(outcome.bad))


def support(root: Path, measured: Sequence[Path], console: Console) -> int:
    """Take in what a GPU machine measured, and write the tables from what is recorded."""
    checkout = Checkout.at(root)
    for file in measured:
        console.print(f"{file}: taken into {gpu.take(checkout, file)}'s result", highlight=False)
    for file in tables.write(checkout):
        console.print(str(file), highlight=False)
    return 0
