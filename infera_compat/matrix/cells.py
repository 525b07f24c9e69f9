"""What a way proves: a cell for each op, seam, model and mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infera_compat.matrix.ways import AUTO, Model, Way

FAILED = "failed"
STOCK_DIFFERS = "stock differs"
NOT_RUN = "not run"
REFUSED = "refused"
NOT_APPLICABLE = "not applicable"
BY_CONTRACT = "by contract only"
EQUAL = "equal"
MEANINGS = {
    FAILED: "run: bound, and unlike stock or never run in a serving step; or the process failed",
    STOCK_DIFFERS: "run: two starts of stock differ themselves, so equality proves nothing",
    NOT_RUN: "nothing is known",
    REFUSED: "run: the seam could not be bound with certainty; the answers are stock's",
    NOT_APPLICABLE: "run: bound, but no layer of the model comes by it; the answers are stock's",
    BY_CONTRACT: "not run; what the seam stands on in the release's source is what the shim needs",
    EQUAL: "run: bound, each bound layer served, every token and logprob is stock's, to the bit",
}
STATUSES = tuple(MEANINGS)
"""Worst first."""

LEAST_DISTINCT = 8
"""Fewer different tokens than this in a model's answers: the comparison could not fail."""

Result = Mapping[str, Any]
"""What infera_shims.engines.generate returns for a model."""


@dataclass(frozen=True)
class Cell:
    """One op by one seam in one model and mode.

    reason: why it is not "equal", or what else is to be known. by, over: the seams and the stock
    classes of the bound layers (seam "auto" asks for no certain one). layers, bound, fired: layers
    of the op, how many of them the seam bound, and how many of those a serving step ran. calls:
    theirs, in serving steps. values_compared: logprobs. distinct_tokens: in all answers.
    """

    op: str
    seam: str
    model: str
    mode: str
    status: str
    reason: str | None = None
    by: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    layers: int = 0
    bound: int = 0
    fired: int = 0
    calls: int = 0
    values_compared: int = 0
    distinct_tokens: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is about."""
        return self.op, self.seam, self.model, self.mode


def of_way(way: Way, stock: Result | str, ours: Result | str) -> Iterator[Cell]:
    """The cells of a way.

    stock, ours: the results of the way that is off and of this one, by model; or, where the process
    failed, why.
    """
    for model in way.models:
        for op in model.ops:
            about = op, way.seam(op), model.name, way.mode
            if isinstance(stock, str):
                yield Cell(*about, NOT_RUN, f"stock failed: {stock}")
            elif "error" in stock[model.name]:
                status = BY_CONTRACT if _contracts_hold(ours) else NOT_RUN
                yield Cell(*about, status, f"stock fails here: {stock[model.name]['error']}")
            elif isinstance(ours, str):
                yield Cell(*about, FAILED, ours)
            elif "error" in ours[model.name]:
                yield Cell(*about, FAILED, ours[model.name]["error"])
            else:
                yield _judged(about, model, stock[model.name], ours[model.name])


def worst(cells: Iterable[Cell]) -> list[Cell]:
    """One cell for each thing that cells are about: where two ways tell of it, the worse."""
    kept: dict[tuple[str, str, str, str], Cell] = {}
    for cell in cells:
        other = kept.setdefault(cell.key, cell)
        if STATUSES.index(cell.status) < STATUSES.index(other.status):
            kept[cell.key] = cell
    return list(kept.values())


def _contracts_hold(ours: Result | str) -> bool:
    """Whether the reports of the models that did run say that every contract holds."""
    if isinstance(ours, str):
        return False
    reports = [report for result in ours.values() for report in result.get("reports", ())]
    return bool(reports) and not any(report["contracts"]["moved"] for report in reports)


def _judged(about: tuple[str, str, str, str], model: Model, stock: Result, ours: Result) -> Cell:
    op, seam, *_ = about
    layers = [x for report in ours["reports"] for x in report["layers"] if x["op"] == op]
    bound = [x for x in layers if x["bound"] and seam in (AUTO, x["seam"])]
    fired = [x for x in bound if x["calls"]["serving"] or x["calls"]["replayed"]]
    status, reason = _status(op, seam, ours["reports"], layers, bound, fired)
    difference = _difference(stock, ours)
    if difference is not None:
        status, reason = FAILED, difference
    return Cell(
        *about,
        status,
        reason,
        by=_distinct(x["seam"] for x in bound),
        over=_distinct(x["over"] for x in bound),
        layers=len(layers),
        bound=len(bound),
        fired=len(fired),
        calls=sum(x["calls"]["serving"] for x in bound),
        values_compared=sum(len(place) for x in ours["requests"] for place in x["logprobs"]),
        distinct_tokens=len({token for x in ours["requests"] for token in x["ids"]}),
    )


def _status(
    op: str,
    seam: str,
    reports: Sequence[Result],
    layers: Sequence[Result],
    bound: Sequence[Result],
    fired: Sequence[Result],
) -> tuple[str, str | None]:
    """The verdict on binding, by the workers' reports alone."""
    if not layers:
        return FAILED, f"the report lists no {op} layer of the model"
    silent = [x["layer"] for x in bound if x not in fired]
    if silent:
        return FAILED, f"bound, but no serving step ran {', '.join(silent)}"
    rest = "; ".join(_distinct(x["why_not"] for x in layers if not x["bound"] and x["why_not"]))
    if bound:
        return EQUAL, rest or None
    taken = any(seam in report["ops"][op]["seams"] for report in reports)
    if taken:
        others = _distinct(x["seam"] for x in layers if x["bound"])
        instead = f"all layers come by {', '.join(others)}" if others else ""
        return NOT_APPLICABLE, rest or instead or "no layer of the model comes by it"
    return REFUSED, "; ".join(_distinct(_refusals(op, seam, reports))) or rest or "no reason given"


def _refusals(op: str, seam: str, reports: Iterable[Result]) -> Iterator[str]:
    for report in reports:
        choice = report["ops"][op]
        yield choice["not_taken"].get(seam) or choice["why_not"] or ""


def _difference(stock: Result, ours: Result) -> str | None:
    """What keeps two runs of a model from being equal, or their equality from meaning anything."""
    theirs = [tuple(x["ids"]) for x in stock["requests"]]
    if [tuple(x["ids"]) for x in ours["requests"]] != theirs:
        return "other tokens than stock's"
    if [x["logprobs"] for x in ours["requests"]] != [x["logprobs"] for x in stock["requests"]]:
        return "other logprobs than stock's"
    if not any(place for x in stock["requests"] for place in x["logprobs"]):
        return "there are no logprobs to compare"
    distinct = len({token for answer in theirs for token in answer})
    if distinct < LEAST_DISTINCT or len(set(theirs)) < len(theirs):
        return (
            f"stock's tokens hardly vary ({distinct} different ones, {len(set(theirs))} different "
            f"answers of {len(theirs)}), so equality proves nothing"
        )
    return None


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
