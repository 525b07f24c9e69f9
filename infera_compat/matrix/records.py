"""Runs of a way, kept so that an interrupted matrix goes on where it was."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infera_compat.matrix import files
from infera_compat.matrix.environments import ALONE, Echo
from infera_compat.matrix.releases import Line
from infera_compat.matrix.ways import Way
from infera_shims.engines import child

WAY_TIMEOUT_S = 1200.0

MODEL_BEGINS = "generate: model "
CAUSE = re.compile(r"(?<![\w.])((?:\w+\.)*\w*(?:Error|Exception): .+)")
LONGEST_CAUSE = 200


@dataclass(frozen=True)
class Record:
    """One run of a way on a release.

    key: a hash of all that it depends on. results: what generate returned; None where the process
    failed, and then `error` says why. seconds: the whole process.
    """

    key: str
    date: str
    seconds: float
    results: dict[str, Any] | None
    error: str | None = None

    @property
    def outcome(self) -> dict[str, Any] | str:
        """The models' results by name, or why there are none."""
        if self.results is None:
            return self.error or "no reason given"
        models: dict[str, Any] = self.results["models"]
        return models


def key(line: Line, way: Way, source: str) -> str:
    """The hash of all that a run depends on: the release, the way, and the plugin's source."""
    names = {model.name: model.name for model in way.models}
    facts = [asdict(line), way.switches, way.job(names), source]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Records:
    """The records of one release, a file each."""

    def __init__(self, folder: Path) -> None:
        """Keep them in `folder`, made when the first is kept."""
        self._folder = folder

    def find(self, way: Way, key: str) -> Record | None:
        """A run of this way that ended well and depended on the same; what failed runs again.

        Raises CompatError where its file is there and holds no record.
        """
        file = self._file(way)
        if not file.is_file():
            return None
        record = _record(file)
        if record.key != key or record.results is None:
            return None
        if set(record.outcome) != {model.name for model in way.models}:
            raise files.damaged(file, f"models {', '.join(record.outcome)}", f"those of {way.name}")
        return record

    def keep(self, way: Way, record: Record) -> None:
        """Put a record in the place of what was there for its way."""
        files.put(self._file(way), json.dumps(asdict(record)))

    def _file(self, way: Way) -> Path:
        return self._folder / f"{re.sub(r'[^a-z0-9_]+', '-', way.name)}.json"


def _record(file: Path) -> Record:
    body = files.load(file)
    try:
        record = Record(**body)
        set(record.outcome)
        float(record.seconds)
    except (TypeError, KeyError, ValueError) as error:
        raise files.damaged(file, f"{type(error).__name__}: {error}", "a record") from error
    return record


def run(
    way: Way,
    key: str,
    python: str,
    folders: dict[str, str],
    cache: Path,
    echo: Echo,
    stop: threading.Event,
) -> Record:
    """Start vLLM in a way, and record what came of it, a failure too.

    cache: vLLM's, of this release alone. Raises Stopped where `stop` is set meanwhile.
    """
    lines: list[str] = []

    def take(line: str) -> None:
        if line.startswith(MODEL_BEGINS):
            lines.clear()
        lines.append(line)
        echo(line)

    began = time.monotonic()
    env = child.environment(**ALONE, **way.switches, VLLM_CACHE_ROOT=str(cache))
    results, error = None, None
    try:
        results = child.run(
            way.job(folders),
            env,
            echo=take,
            timeout_s=WAY_TIMEOUT_S,
            python=python,
            stop=stop,
        )
    except child.ChildError as failure:
        error = cause(lines) or str(failure).partition(". Its last lines")[0]
    if results is not None:
        # An optional model is the last, so what is left of the output is about it.
        for result in results["models"].values():
            if "error" in result:
                result["error"] = cause(lines) or result["error"]
    today = datetime.date.today().isoformat()
    return Record(key, today, round(time.monotonic() - began, 1), results, error)


def cause(lines: Sequence[str]) -> str | None:
    """The first exception that is told of in an engine's output, warnings left out.

    Later ones only say that something failed, one for each process between.
    """
    for line in lines:
        found = CAUSE.search(line)
        if found and " WARNING " not in f" {line}":
            text = found[1].strip()
            return text if len(text) <= LONGEST_CAUSE else f"{text[: LONGEST_CAUSE - 1]}…"
    return None
