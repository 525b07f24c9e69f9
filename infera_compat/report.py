"""What the operator reads: the start-up lines, and their JSON twin (INFERA_REPORT)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from infera_compat import __version__
from infera_compat.errors import OFF_SWITCH
from infera_compat.ledger import Choice, Layer
from infera_compat.release import Release
from infera_compat.settings import AUTO

# A child of vLLM's own tree: INFO lines of any other logger reach nobody.
log = logging.getLogger("vllm.infera_compat")


def say(line: str) -> None:
    """Log at INFO.

    Called only where a model is about to be built or was: from 0.31 on vLLM's tree has no handler
    before that in a front end, and a line would be lost.
    """
    log.info("%s", line)


def warn(line: str) -> None:
    """Log at WARNING."""
    log.warning("%s", line)


def off_line() -> str:
    """The one line of a process that the kill switch keeps stock."""
    return f"infera-compat {__version__} is off ({OFF_SWITCH}): this vLLM is stock."


def start_line(release: Release, shim: str, held: int, of: int, choices: Iterable[Choice]) -> str:
    """The line at registration: release, shim, contracts, and each op's seam or reason."""
    ops = "; ".join(_op_plan(choice) for choice in choices)
    return (
        f"infera-compat {__version__} on vLLM {release} (shim {shim}, contracts {held}/{of}): "
        f"{ops}. {OFF_SWITCH} switches all of this off."
    )


def _op_plan(choice: Choice) -> str:
    plan = (
        f"{choice.op}: {choice.kernel}{' (auto)' if choice.asked == AUTO else ''} by "
        f"{', '.join(choice.seams)}"
        if choice.kernel
        else f"{choice.op}: stock ({choice.why_not})"
    )
    return "; ".join([plan, *choice.notes])


def model_lines(choices: Iterable[Choice], layers: Iterable[Layer]) -> str:
    """The line when a model was built: per op, how many layers, by what, over what."""
    by_op: dict[str, list[Layer]] = {}
    for layer in layers:
        by_op.setdefault(layer.op, []).append(layer)
    rows = [f"  {_op_layers(choice, by_op.get(choice.op, []))}" for choice in choices]
    return "\n".join(["infera-compat: model built", *rows])


def _op_layers(choice: Choice, layers: list[Layer]) -> str:
    if not layers:
        return f"{choice.op}: the model has no such layers"
    bound = Counter((x.seam, x.over, x.kernel) for x in layers if x.bound)
    parts = [f"{n}/{len(layers)} layers by {s} over {o}, {k}" for (s, o, k), n in bound.items()]
    stock = Counter((x.over, x.why_not) for x in layers if not x.bound)
    parts += [f"{n}/{len(layers)} layers stock ({o}: {why})" for (o, why), n in stock.items()]
    others = Counter(x.shared_with for x in layers if x.shared_with)
    parts += [f"{n} of them held by {other} too" for other, n in others.items()]
    return f"{choice.op}: {'; '.join(parts)}"


def role(rank: int | None) -> str:
    """What this process is to vLLM: the rank is known where it builds a model."""
    name = current_process().name
    if rank is not None or "Worker" in name:
        return "worker"
    return "engine core" if "EngineCore" in name else "front end"


def append(path: Path, event: str, body: Mapping[str, Any]) -> None:
    """Append one JSON line to INFERA_REPORT's file.

    Several processes append to one file: a line goes out in a single write to a descriptor opened
    for appending, which the kernel does not tear apart.
    """
    entry = {
        "event": event,
        "time": time.time(),
        "process": current_process().name,
        "pid": os.getpid(),
        "infera_compat": __version__,
        **body,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)
