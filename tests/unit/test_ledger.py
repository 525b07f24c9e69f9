from __future__ import annotations

import pytest

from infera_compat.ledger import SERVING, Calls, Choice, Layer, Ledger

KEY = "attention", "layers.0"


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.survey([Layer(*KEY, "FLASH_ATTN", "seam", "kernel"), Layer("moe", "layers.1", "Triton")])
    return ledger


def calls(ledger: Ledger) -> Calls:
    return ledger.calls()[KEY]


def test_it_begins_by_profiling(ledger: Ledger) -> None:
    ledger.count(*KEY)
    assert calls(ledger) == Calls(profile=1)
    assert not calls(ledger).fired


def test_serving_is_counted_apart_from_profiling(ledger: Ledger) -> None:
    ledger.count(*KEY)
    ledger.phase = SERVING
    ledger.count(*KEY)
    ledger.count(*KEY)
    assert calls(ledger) == Calls(profile=1, serving=2)
    assert calls(ledger).fired


def test_a_capture_is_counted_apart_and_told(ledger: Ledger) -> None:
    captured: list[tuple[str, str]] = []
    ledger.on_capture = captured.append
    ledger.count(*KEY)
    ledger.capturing = lambda: True
    ledger.count(*KEY)
    ledger.count("moe", "layers.1")
    assert calls(ledger) == Calls(profile=1, capture=1)
    assert captured == [KEY, ("moe", "layers.1")]
    assert not calls(ledger).fired


def test_replays_are_read_when_asked_and_count_as_fired(ledger: Ledger) -> None:
    assert calls(ledger).replayed is None
    ledger.replays = lambda: {KEY: 4}
    assert (calls(ledger).replayed, calls(ledger).fired) == (4, True)
    ledger.replays = lambda: {KEY: 0}
    assert (calls(ledger).replayed, calls(ledger).fired) == (0, False)


def test_a_new_model_is_a_new_page(ledger: Ledger) -> None:
    ledger.count(*KEY)
    ledger.steps = 7
    ledger.survey([Layer("attention", "layers.9", "FLASH_ATTN")])
    assert ledger.steps == 0
    assert ledger.calls() == {("attention", "layers.9"): Calls()}
    assert [layer.layer for layer in ledger.of("attention")] == ["layers.9"]
    assert ledger.of("moe") == []


def test_what_ran_and_is_no_layer_is_kept_apart(ledger: Ledger) -> None:
    ledger.count("moe", "a drafter's")
    book = ledger.as_json()
    assert [layer["layer"] for layer in book["layers"]] == ["layers.0", "layers.1"]
    assert [(x["layer"], x["calls"]["profile"]) for x in book["unknown_layers"]] == [
        ("a drafter's", 1)
    ]


def test_a_layer_is_bound_where_a_kernel_stands_in_it(ledger: Ledger) -> None:
    assert [layer["bound"] for layer in ledger.as_json()["layers"]] == [True, False]


def test_a_refused_choice_keeps_its_reason_and_what_was_asked() -> None:
    choice = Choice("moe", "passthrough", kernel="passthrough", seams=["modular_kernel"])
    choice.refuse("it moved")
    assert (choice.asked, choice.kernel, choice.seams, choice.why_not) == (
        "passthrough",
        None,
        [],
        "it moved",
    )


def test_a_choice_that_falls_back_keeps_the_reason_by_seam_too() -> None:
    choice = Choice("attention", "passthrough", kernel="passthrough", seams=["a", "b"])
    choice.not_taken["c"] = "only when forced"
    choice.refuse("a layer is sealed")
    assert choice.not_taken == {
        "a": "a layer is sealed",
        "b": "a layer is sealed",
        "c": "only when forced",
    }


def test_the_names_that_seams_made_are_those_of_one_model(ledger: Ledger) -> None:
    ledger.made[KEY] = "pluggable_layer"
    ledger.survey([])
    assert ledger.made == {}


def test_a_layer_that_is_shared_says_with_whom(ledger: Ledger) -> None:
    ledger.survey([Layer(*KEY, "FLASH_ATTN", "layer", "kernel", shared_with="their_plugin")])
    (layer,) = ledger.as_json()["layers"]
    assert (layer["bound"], layer["shared_with"]) == (True, "their_plugin")


def test_layers_of_two_ops_may_have_one_name() -> None:
    ledger = Ledger()
    ledger.survey([Layer("attention", "x", "A"), Layer("moe", "x", "B")])
    ledger.count("moe", "x")
    found = {(layer["op"], layer["calls"]["profile"]) for layer in ledger.as_json()["layers"]}
    assert found == {("attention", 0), ("moe", 1)}
