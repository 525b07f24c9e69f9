"""Pairs of engines: what is asked of them, and what a cell says of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_bench import TOLD

from infera_compat.bench import engines, goals, record
from infera_compat.bench.record import ENGINE, Record
from infera_compat.cli import bench as command
from infera_compat.errors import CompatError
from infera_compat.plan import benches

MODEL = engines.TINY["tiny-llama"]


class FakeEngine:
    """Answers as an engine would; both sides give the same text, but for one that is `wrong`."""

    def __init__(self, log: list[str], side: str, tok_s: float, wrong: bool = False) -> None:
        self.log, self.side, self.tok_s, self.wrong = log, side, tok_s, wrong
        self.attention = "FLASH_ATTN"

    def ask(self, do: str, **question: Any) -> Any:
        if do == "facts":
            return {
                "start_s": 60.0,
                "peak_gib": 30.0,
                "vocab": 512,
                "attention": self.attention,
                "bound": [{"layers": 2}],
            }
        if do == "compare":
            return [{"ids": [1, 2], "logprobs": [-0.5, -0.25]} for _ in question["prompts"]]
        self.log.append(f"{self.side} {len(question['prompts'])} {question['prompts'][0][0]}")
        ids = [[7] * new for new in question["new"]]
        if self.wrong:
            ids[0] = [8] * len(ids[0])
        return {"tok_s": self.tok_s, "ttft_ms": 5.0, "tpot_ms": 2.0, "ids": ids}


def both(wrong: bool = False) -> tuple[list[str], dict[str, Any]]:
    log: list[str] = []
    return log, {
        "stock": FakeEngine(log, "stock", 100.0),
        "ours": FakeEngine(log, "ours", 120.0, wrong),
    }


def test_the_sides_of_a_pair_take_turns_on_the_same_prompts() -> None:
    log, pair = both()
    first, *_ = engines.pair(MODEL, None, pair, (), 2)
    asked = log[:6]  # warm-up, and two rounds
    assert [line.split()[0] for line in asked] == ["stock", "ours"] * 3
    tokens = [line.split()[2] for line in asked]
    assert tokens[::2] == tokens[1::2]
    assert len(set(tokens)) > 1
    assert first["rounds"] == 2


def test_a_cell_has_what_the_issue_asks_for_and_a_plan_counts_it() -> None:
    _, pair = both()
    cell = next(iter(engines.pair(MODEL, None, pair, (), 1)))
    assert set(benches.SAID) - {"mode"} <= cell.keys()
    for side in ("stock", "ours"):
        assert set(benches.FIGURES) <= cell[side].keys()
    assert goals.of_engines(cell) == pytest.approx(1.2)


@pytest.mark.parametrize(("wrong", "same"), [(False, 4), (True, 2)])
def test_texts_that_differ_are_counted(wrong: bool, same: int) -> None:
    _, pair = both(wrong)
    cell = next(iter(engines.pair(MODEL, None, pair, (), 2)))
    assert (cell["same_text"], cell["prompts"]) == (same, 4)


def test_loads_that_are_recorded_do_not_run_again() -> None:
    _, pair = both()
    done = [engines.name(MODEL, MODEL.loads[0])]
    left = [cell["name"] for cell in engines.pair(MODEL, None, pair, done, 1)]
    assert left == [engines.name(MODEL, MODEL.loads[1])]


def test_an_engine_with_another_backend_is_not_compared() -> None:
    _, pair = both()
    with pytest.raises(CompatError, match="is no engine to compare"):
        next(iter(engines.pair(MODEL, "TRITON_ATTN", pair, (), 1)))


def test_stock_is_switched_off_and_ours_is_asked_for_by_name() -> None:
    stock, ours = engines.sides("infera_decode", "FLASH_ATTN", "attention", Path("table.json"))
    assert stock.variables == {"INFERA_VLLM_OPS_DISABLE": "1"}
    assert ours.variables["INFERA_ATTENTION"] == "infera_decode"
    assert Path(ours.variables["INFERA_KERNEL_TABLE"]).is_absolute()
    assert stock.backend is ours.backend is None
    assert {x.backend for x in engines.sides("k", "TRITON_ATTN", "attention", None)} == {
        "TRITON_ATTN"
    }


def test_a_folder_without_real_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompatError, match="has real weights"):
        engines.written(engines.MODELS["smollm2-135m"], tmp_path, None)


@pytest.mark.parametrize("model", engines.MODELS.values(), ids=list(engines.MODELS))
def test_no_request_is_longer_than_the_engine_serves(model: engines.Model) -> None:
    longest = max(prompt + new for load in model.loads for prompt, new in load.requests)
    assert longest <= model.longest
    assert len({engines.name(model, load) for load in model.loads}) == len(model.loads)


def test_the_loads_are_those_of_the_issues() -> None:
    llama = engines.MODELS["llama-3-8b"].loads
    assert {load.batch for load in llama if load.name == "1k context"} == {1, 2, 8, 64}
    assert {load.batch for load in llama if load.name == "16k context"} == {1, 2, 8}
    assert any("chunked" in load.name for load in llama)
    moe = engines.MODELS["qwen3-30b-a3b"].loads
    assert {(load.name, load.batch) for load in moe} == {
        (name, batch) for name in ("prefill-heavy", "decode-heavy") for batch in (2, 64)
    }


def test_the_caches_of_a_pair_hold_every_load() -> None:
    llama = engines.MODELS["llama-3-8b"]
    a_token = 32 * 2 * 8 * 128 * 2  # layers, K and V, KV heads, channels, bytes
    assert max(load.tokens for load in llama.loads) * a_token < llama.kv_gib * (1 << 30)


def test_show_tells_of_engines(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    _, pair = both()
    kept = Record.begin(ENGINE, TOLD, {"date": TOLD["date"]}, None, False)
    for cell in engines.pair(MODEL, None, pair, (), 1):
        kept.add({"kernel": "infera_experts", "baseline": "TritonExperts", **cell})
    command.show(kept.body, Console(width=240))
    said = capsys.readouterr().out
    assert "1.200" in said
    assert "2/2" in said
    found = list(goals.scores(record.ENGINE, kept.cells))
    assert found[-1].found == pytest.approx(1.2)
