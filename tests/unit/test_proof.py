"""The demo's proof fails where it must: each thing that would make it worthless is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from infera_compat.cli.proof import Mode, Run, calls_of, compare, problems

OPS = {"model": ("attention",)}
STOCK = {"layer": "vllm.A", "impl": "vllm.I", "quant_method": None, "experts": None} | {
    "instance_attributes": []
}


def run(mode: Mode, **changes: Any) -> Run:
    bound = mode.fires
    layer = {
        "op": "attention",
        "layer": "model.layers.0.attn",
        "over": "CPU_ATTN",
        "seam": mode.seam or "get_attn_backend_cls" if bound else None,
        "kernel": "passthrough" if bound else None,
        "bound": bound,
        "why_not": None if bound else "off",
        "calls": {"serving": 9, "profile": 1, "capture": 0, "replayed": None},
    }
    result: dict[str, Any] = {
        "requests": [
            {"ids": list(range(n, n + 9)), "logprobs": [{"1": float(n).hex()}], "text": None}
            for n in (1, 50)
        ],
        "layers": {"model.layers.0.attn": STOCK},
        "reports": [{"layers": [layer], "ops": {}}] if bound else [],
    }
    return Run(mode, "0.32.0", {"model": result}, [], 1.0)


OFF = Mode("off", {}, fires=False)
PASSING = Mode("passthrough", {})
PLATFORM = Mode("platform", {}, seam="platform")


def found(*runs: Run) -> list[str]:
    return problems(runs, compare(runs), OPS)


def test_equal_runs_that_fired_prove_it() -> None:
    assert found(run(OFF), run(PASSING), run(PLATFORM)) == []


def changed(base: Run, change: Any) -> Run:
    other = copy.deepcopy(base)
    change(other.models["model"])
    return other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["requests"][0]["ids"].__setitem__(3, 77), "other tokens"),
        (lambda m: m["requests"][0]["logprobs"][0].update({"1": "0x1p-9"}), "other logprobs"),
        (lambda m: m["reports"].clear(), "no worker reported"),
        (lambda m: m["reports"][0]["layers"][0].update(bound=False), "no attention layer"),
        (lambda m: m["reports"][0]["layers"][0]["calls"].update(serving=0), "no serving step ran"),
    ],
)
def test_a_passing_run_that_differs_or_did_not_fire(change: Any, said: str) -> None:
    assert any(said in problem for problem in found(run(OFF), changed(run(PASSING), change)))


def test_tokens_that_do_not_vary_prove_nothing() -> None:
    def flat(model: dict[str, Any]) -> None:
        for request in model["requests"]:
            request["ids"] = [1] * 9

    runs = [changed(run(mode), flat) for mode in (OFF, PASSING)]
    assert any("hardly vary" in problem for problem in found(*runs))


def test_our_classes_in_the_off_run_are_seen() -> None:
    def ours(model: dict[str, Any]) -> None:
        model["layers"]["model.layers.0.attn"]["impl"] = "infera_shims.seams.backends.X"

    assert any("is not stock" in p for p in found(changed(run(OFF), ours), run(PASSING)))


def test_the_platform_run_must_be_bound_by_the_platform() -> None:
    def wrapped(model: dict[str, Any]) -> None:
        model["reports"][0]["layers"][0]["seam"] = "get_attn_backend_cls"

    assert any("not platform" in p for p in found(run(OFF), changed(run(PLATFORM), wrapped)))


def test_layers_that_differ_only_in_number_share_a_row() -> None:
    many = run(PASSING)
    (layer,) = many.models["model"]["reports"][0]["layers"]
    many.models["model"]["reports"][0]["layers"] = [
        {**layer, "layer": f"model.layers.{n}.attn"} for n in (0, 1, 2, 5)
    ]
    (row,) = calls_of(many)
    assert (row.layers, row.count) == ("model.layers.0 … 2, 5", 4)
