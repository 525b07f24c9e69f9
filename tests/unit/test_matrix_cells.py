"""A cell is "equal" only where bound code ran and nothing differs; each other end has its name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from infera_compat.matrix import cells
from infera_compat.matrix.cells import Cell, of_way
from infera_compat.matrix.ways import ATTENTION, AUTO, DENSE, EAGER, MOE, WAYS, Way
from infera_compat.settings import SEAMS

LAYER = "layer"
WAY = Way(LAYER, "model", EAGER, DENSE[:1])
OFF = Way(None, None, EAGER, DENSE[:1])
NAME = DENSE[0].name


def layer(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "op": ATTENTION,
        "layer": f"model.layers.{number}.attn",
        "over": "CPU_ATTN",
        "seam": LAYER,
        "kernel": "passthrough",
        "bound": True,
        "why_not": None,
        "calls": {"serving": 9, "profile": 1, "capture": 0, "replayed": None},
    } | changes


UNBOUND = {"bound": False, "seam": None, "kernel": None}


def stock() -> dict[str, Any]:
    return {
        "requests": [
            {"ids": list(range(n, n + 9)), "logprobs": [{"1": float(n).hex()}] * 9} for n in (1, 50)
        ],
        "reports": [],
    }


def ours() -> dict[str, Any]:
    choice = {"seams": [LAYER], "why_not": None, "not_taken": {}}
    report = {
        "contracts": {"moved": []},
        "ops": {ATTENTION: choice},
        "layers": [layer(0), layer(1)],
    }
    return stock() | {"reports": [report]}


def judged(mine: Any, theirs: Any = None, way: Way = WAY) -> Cell:
    (cell,) = of_way(way, theirs or {NAME: stock()}, mine)
    return cell


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    result = copy.deepcopy(ours())
    change(result)
    return {NAME: result}


def test_bound_fired_and_alike_is_equal() -> None:
    assert judged({NAME: ours()}) == Cell(
        ATTENTION, LAYER, NAME, EAGER, cells.EQUAL,
        by=(LAYER,), over=("CPU_ATTN",), layers=2, bound=2, fired=2, calls=18,
        values_compared=18, distinct_tokens=18,
    )  # fmt: skip


def layers_of(result: dict[str, Any]) -> Any:
    return result["reports"][0]["layers"]


def choice_of(result: dict[str, Any]) -> Any:
    return result["reports"][0]["ops"][ATTENTION]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x["requests"][1]["ids"].__setitem__(3, 77), "other tokens"),
        (lambda x: x["requests"][1]["logprobs"].__setitem__(3, {"1": "0x1p-9"}), "other logprobs"),
        (
            lambda x: layers_of(x)[1]["calls"].update(serving=0),
            "no serving step ran model.layers.1",
        ),
        (lambda x: layers_of(x).clear(), "lists no attention layer"),
        (lambda x: x["reports"].clear(), "lists no attention layer"),
    ],
)
def test_what_is_not_as_it_should_be_has_failed(change: Any, said: str) -> None:
    cell = judged(changed(change))
    assert cell.status == cells.FAILED
    assert cell.reason is not None
    assert said in cell.reason


def test_an_unbound_layer_is_told_of_beside_the_bound() -> None:
    cell = judged(changed(lambda x: layers_of(x)[0].update(**UNBOUND, why_not="a sink")))
    assert (cell.status, cell.reason, cell.bound, cell.layers) == (cells.EQUAL, "a sink", 1, 2)


def unbind(result: dict[str, Any]) -> None:
    for entry in layers_of(result):
        entry.update(**UNBOUND, why_not="its class is not known")


def test_a_seam_that_is_bound_and_takes_no_layer_is_not_applicable() -> None:
    cell = judged(changed(unbind))
    assert (cell.status, cell.reason) == (cells.NOT_APPLICABLE, "its class is not known")


def test_a_seam_that_is_not_bound_has_refused_with_the_reports_reason() -> None:
    def refuse(result: dict[str, Any]) -> None:
        unbind(result)
        choice_of(result).update(seams=[], not_taken={LAYER: "moved: a.b"}, why_not="none left")

    cell = judged(changed(refuse))
    assert (cell.status, cell.reason) == (cells.REFUSED, "moved: a.b")


def test_layers_of_another_seam_do_not_count_but_for_auto() -> None:
    def other(result: dict[str, Any]) -> None:
        choice_of(result)["seams"] = ["model"]
        for entry in layers_of(result):
            entry["seam"] = "model"

    assert judged(changed(other)).status == cells.REFUSED
    auto = judged(changed(other), way=Way(AUTO, AUTO, EAGER, DENSE[:1]))
    assert (auto.status, auto.by) == (cells.EQUAL, ("model",))


def test_a_replayed_graph_counts_as_fired() -> None:
    def graphs(result: dict[str, Any]) -> None:
        for entry in layers_of(result):
            entry["calls"].update(serving=0, replayed=4)

    assert judged(changed(graphs)).status == cells.EQUAL


@pytest.mark.parametrize("ids", [[1] * 9, list(range(1, 10))])
def test_answers_that_do_not_vary_prove_nothing(ids: list[int]) -> None:
    flat, same = stock(), ours()
    for result in (flat, same):
        for request in result["requests"]:
            request["ids"] = ids
    cell = judged({NAME: same}, {NAME: flat})
    assert cell.status == cells.FAILED
    assert "proves nothing" in str(cell.reason)


@pytest.mark.parametrize(
    ("theirs", "mine", "status", "said"),
    [
        ("no g++", {NAME: ours()}, cells.NOT_RUN, "stock failed: no g++"),
        (
            {NAME: {"error": "no MLA"}},
            {NAME: ours()},
            cells.BY_CONTRACT,
            "stock fails here: no MLA",
        ),
        ({NAME: stock()}, "out of memory", cells.FAILED, "out of memory"),
        ({NAME: stock()}, {NAME: {"error": "KeyError: 1"}}, cells.FAILED, "KeyError: 1"),
    ],
)
def test_a_process_that_failed(theirs: Any, mine: Any, status: str, said: str) -> None:
    cell = judged(mine, theirs)
    assert (cell.status, cell.reason) == (status, said)


def test_where_a_contract_moved_nothing_is_known_of_a_model_that_stock_fails_on() -> None:
    moved = changed(lambda x: x["reports"][0].update(contracts={"moved": ["a.b"]}))
    assert judged(moved, {NAME: {"error": "no MLA"}}).status == cells.NOT_RUN


def test_of_two_ways_that_tell_of_one_thing_the_worse_counts() -> None:
    good, bad = (Cell("moe", AUTO, NAME, EAGER, x) for x in (cells.EQUAL, cells.FAILED))
    assert cells.worst([good, bad]) == cells.worst([bad, good]) == [bad]


def test_the_eager_ways_ask_for_each_op_by_each_seam() -> None:
    eager = [way for way in WAYS if way.mode == EAGER and not way.off]
    for op in (ATTENTION, MOE):
        assert {way.seam(op) for way in eager} == {AUTO, *SEAMS[op]}


def test_stock_comes_first_in_each_mode() -> None:
    seen: set[str] = set()
    for way in WAYS:
        assert way.off == (way.mode not in seen)
        seen.add(way.mode)


def test_names_of_ways_differ() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS)


def test_no_way_is_strict() -> None:
    assert not any("INFERA_STRICT" in way.switches for way in WAYS)
    assert OFF.switches["INFERA_VLLM_OPS_DISABLE"] == "1"
