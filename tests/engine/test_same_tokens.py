"""Passing through changes nothing: tokens and logprobs, bit for bit, and its code did run."""

from __future__ import annotations

import pytest
from conftest import DENSE, MOE, Run, Starts

PAIRS = [
    ("passthrough", "off", DENSE),
    ("passthrough", "off", MOE),
    ("platform", "off", DENSE),
    ("platform", "off", MOE),
    ("auto", "off", DENSE),
    ("passthrough compiled", "off compiled", MOE),
    ("platform compiled", "off compiled", DENSE),
    ("off", "absent", DENSE),
    ("off", "absent", MOE),
]


@pytest.mark.parametrize(("ours", "stock", "model"), PAIRS)
def test_tokens_and_logprobs_are_equal_bit_by_bit(
    run: Starts, ours: str, stock: str, model: str
) -> None:
    assert run(ours).requests(model) == run(stock).requests(model)


@pytest.mark.parametrize("model", [DENSE, MOE])
@pytest.mark.parametrize("way", ["off", "off compiled"])
def test_the_comparison_can_fail(run: Starts, way: str, model: str) -> None:
    """Tokens vary within a request and between requests, and logprobs are there for each."""
    requests = run(way).requests(model)
    assert len({tuple(request["ids"]) for request in requests}) == len(requests)
    for request in requests:
        assert len(set(request["ids"])) > 5
        assert [len(place) for place in request["logprobs"]] == [5] * len(request["ids"])
    assert run("off").requests(DENSE) != run("off").requests(MOE)


BOUND = [
    ("passthrough", DENSE),
    ("passthrough", MOE),
    ("platform", DENSE),
    ("platform", MOE),
    ("passthrough compiled", MOE),
    ("platform compiled", DENSE),
]


@pytest.mark.parametrize(("way", "model"), BOUND)
def test_each_layer_is_bound_and_fired_in_every_step(run: Starts, way: str, model: str) -> None:
    (report,) = run(way).models[model]["reports"]
    ops = [layer["op"] for layer in report["layers"]]
    assert ops.count("attention") == 2
    assert ops.count("moe") == (2 if model == MOE else 0)
    assert report["steps"] >= 24
    for layer in report["layers"]:
        assert layer["bound"], layer
        assert layer["calls"]["serving"] == report["steps"], layer
    assert report["unknown_layers"] == []


@pytest.mark.parametrize(("way", "model"), BOUND)
def test_by_the_seam_that_was_asked_for(run: Starts, way: str, model: str, shim: object) -> None:
    (report,) = run(way).models[model]["reports"]
    attention = "platform" if way.startswith("platform") else "get_attn_backend_cls"
    seams = {layer["op"]: layer["seam"] for layer in report["layers"]}
    assert seams.pop("attention") == attention
    assert seams == ({"moe": shim.automatic("moe", "cpu")[0]} if model == MOE else {})
    assert {layer["over"] for layer in report["layers"] if layer["op"] == "attention"} == {
        "CPU_ATTN"
    }


def test_auto_binds_nothing_and_says_so(run: Starts) -> None:
    (report,) = run("auto").models[DENSE]["reports"]
    assert all(not layer["bound"] for layer in report["layers"])
    assert report["ops"]["attention"]["why_not"] == "auto: no kernel is chosen on a cpu"
    said = "stock (auto: no kernel is chosen on a cpu)"
    assert any(said in line for line in run("auto").our_lines())


def classes(run: Run, model: str) -> object:
    return run.models[model]["layers"]


@pytest.mark.parametrize("model", [DENSE, MOE])
def test_switched_off_the_classes_are_those_of_a_vllm_without_us(run: Starts, model: str) -> None:
    """Where the model is in this process; 0.22 always starts a worker, and shows no layers."""
    assert classes(run("off"), model) == classes(run("absent"), model)
    assert "infera" not in str(classes(run("off"), model))


def test_passing_through_shows_our_class_in_each_layer(run: Starts) -> None:
    layers = classes(run("passthrough"), DENSE)
    if layers is not None:
        assert all(x["impl"].startswith("infera_shims.seams.backends.") for x in layers.values())
