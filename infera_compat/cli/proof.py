"""What the demo proves: the plugin's runs against a run with it off, and that its code ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LEAST_DISTINCT = 8
"""Fewer different tokens than this in a model's answers: the comparison could not fail."""


@dataclass(frozen=True)
class Mode:
    """One way to start vLLM: the switches, and whether the plugin must be seen at work.

    seam: what attention must be bound by, where the mode is about that.
    """

    name: str
    switches: Mapping[str, str]
    fires: bool = True
    seam: str | None = None


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
    serving: int
    profile: int
    capture: int
    count: int


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


def problems(
    runs: Sequence[Run], comparisons: Sequence[Comparison], ops: Mapping[str, Sequence[str]]
) -> list[str]:
    """All that keeps the demo from being a proof, a sentence each; none if it is one.

    ops: what each model is made of ("attention", "moe"), so what must be bound in it.
    """
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
                for what in (
                    _unfired(ops[model], run, result) if run.mode.fires else _traces(result)
                )
            ]
    return found


def _unfired(ops: Sequence[str], run: Run, result: Mapping[str, Any]) -> Iterator[str]:
    """What should have been bound or have run in a model, and was not or did not."""
    if not result["reports"]:
        yield "no worker reported"
    for report in result["reports"]:
        for op in ops:
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
                    seam=layer["seam"] if layer["bound"] else f"stock: {layer['why_not']}",
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
