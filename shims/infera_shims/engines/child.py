"""Start a module of this package in a process of its own, and read what it wrote.

Imports the standard library alone, so that it can be used where neither vLLM nor torch is.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GENERATE = "infera_shims.engines.generate"

DEFAULTS: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # results on a CPU depend on the number of threads
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What an engine gets on top of the caller's environment."""

DROPPED = ("PYTHONDONTWRITEBYTECODE",)
"""Left out of an engine's environment: without bytecode each import of vLLM takes 10 s longer."""

OWN_PREFIX = "INFERA_"
"""Switches of the caller that must not leak into a run that is to be compared with another."""

LAST_LINES = 40
CAUSE = re.compile(r"\b\w*(?:Error|Exception): ")
"""A line that ends a traceback. A worker's stands above the tail: its parent's own comes after."""
MOST_CAUSES = 5
GRACE_S = 5.0
LOOK_S = 1.0
"""How often, in silence, it is looked whether the child lives and whether it is to be stopped."""


class ChildError(RuntimeError):
    """A child process failed or took too long.

    The message ends with its last lines, and before them the errors told further up.
    """


class Stopped(Exception):
    """A child process was ended because its caller's `stop` was set."""


@dataclass(frozen=True)
class Output:
    """What is kept of a child's output.

    Attributes:
        last: its last lines, at most `LAST_LINES`.
        causes: the first lines above them that name an error, at most `MOST_CAUSES`.
    """

    last: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=LAST_LINES)
    )
    causes: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Keep the next line. The first makes room; where it names an error it is a cause."""
        if len(self.last) == LAST_LINES and len(self.causes) < MOST_CAUSES:
            leaving = self.last[0]
            if CAUSE.search(leaving):
                self.causes.append(leaving)
        self.last.append(line)


def environment(**extra: str) -> dict[str, str]:
    """The environment for an engine: the caller's, `DEFAULTS`, then `extra`.

    The caller's INFERA_* variables are left out; those of `extra` count.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED and not name.startswith(OWN_PREFIX)
    }
    return {**inherited, **DEFAULTS, **extra}


def run(
    job: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    echo: Callable[[str], None] | None = None,
    timeout_s: float = 900.0,
    python: str = sys.executable,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Run a job of `infera_shims.engines.generate` and return its results.

    Args:
        job: as that module describes it.
        env: the child's whole environment, usually from `environment`.
        echo: called with each line of the child's output, standard error included.
        timeout_s: seconds until the child and all that it started are ended.
        python: the interpreter, which has vLLM and this package; by default this one.
        stop: once set, the child and all that it started are ended.

    Raises:
        ChildError: it exited with a status other than 0, took too long, or wrote no results.
        Stopped: `stop` was set.
    """
    with tempfile.TemporaryDirectory(prefix="infera-job-") as folder:
        question, answer = Path(folder, "job.json"), Path(folder, "out.json")
        question.write_text(json.dumps(job), "utf-8")
        output = spawn(
            GENERATE,
            [str(question), str(answer)],
            env,
            echo=echo,
            timeout_s=timeout_s,
            python=python,
            stop=stop,
        )
        try:
            results: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        except FileNotFoundError as error:
            raise ChildError(_message(GENERATE, "exited without results", output)) from error
    return results


def spawn(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    echo: Callable[[str], None] | None = None,
    timeout_s: float = 900.0,
    python: str = sys.executable,
    stop: threading.Event | None = None,
) -> Output:
    """Run `python -m module arguments` in a process group of its own; arguments as for `run`.

    Returns:
        What is kept of its output.

    Raises:
        ChildError: it exited with a status other than 0, or took longer than `timeout_s`.
        Stopped: `stop` was set.
    """
    began = time.monotonic()
    output = Output()
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        while True:
            if stop is not None and stop.is_set():
                raise Stopped
            left = began + timeout_s - time.monotonic()
            if left <= 0:
                raise ChildError(_message(module, f"took longer than {timeout_s:.0f} s", output))
            try:
                line = lines.get(timeout=min(left, LOOK_S))
            except queue.Empty:
                if process.poll() is None:
                    continue
                break  # it is gone; what still holds its output is left over and ended below
            if line is None:
                break
            output.add(line)
            if echo is not None:
                echo(line)
        try:
            status = process.wait(max(GRACE_S, began + timeout_s - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            late = f"took longer than {timeout_s:.0f} s"
            raise ChildError(_message(module, late, output)) from error
    finally:
        _end(process)
        reader.join(GRACE_S)
    if status != 0:
        exited = f"exited with status {status} after {time.monotonic() - began:.0f} s"
        raise ChildError(_message(module, exited, output))
    return output


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                lines.put(line.rstrip("\r\n"))
    lines.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """End the whole group: politely where the leader still runs, then for good."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _message(module: str, what: str, output: Output) -> str:
    causes = ["Errors further up:", *_indented(output.causes)] if output.causes else []
    tail = ["Its last lines:", *(_indented(output.last) or ["    (none)"])]
    return f"python -m {module} {what}. " + "\n".join([*causes, *tail])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
