"""How attention is cut: what fits which GPU, a GPU's file, the search among candidates."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from infera_compat.errors import CompatError
from infera_compat.kernels import pieces, replays
from infera_compat.kernels.attention import arguments, settings, timing, tuning
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.attention.settings import Decoding, Found, Prefilling
from infera_compat.kernels.limits import SHARED, Limits

GPU = "NVIDIA H200"
FOUND = {
    (32, 8, 128): Found({1: Decoding(32, 2, 5, 1, 2), 256: Decoding()}, Prefilling(64, 64, 4, 3)),
    (8, 1, 128): Found({16: Decoding(128)}),
}


def spec(head_size: int = 128, **values: Any) -> AttentionSpec:
    half = torch.bfloat16
    given = {"block_size": 16, "device": "cpu", "capability": (9, 0), **values}
    return AttentionSpec(32, 8, head_size, half, half, **given)


@pytest.mark.parametrize("capability", [None, (7, 5), *SHARED], ids=str)
@pytest.mark.parametrize("head_size", [16, 64, 96, 128, 192, 256])
def test_what_is_said_fits_the_gpu(head_size: int, capability: tuple[int, int] | None) -> None:
    layer = spec(head_size, capability=capability)
    limits, channels = Limits.of(layer), arguments.channels(layer)
    for queries in (1, 8):
        decoding = settings.decoding(layer, queries, 16)
        assert settings.decoding_bytes(decoding, 4 * queries, channels) <= limits.shared
        assert decoding.stages <= limits.stages
    prefilling = settings.prefilling(layer)
    assert settings.prefilling_bytes(prefilling, channels, limits) <= limits.shared
    assert prefilling.stages <= limits.stages


def test_a_gpus_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = settings.path(GPU, tmp_path / "configs")
    settings.write(file, GPU, {"torch": "2.11.0"}, FOUND)
    assert file.name == "nvidia-h200.json"
    assert settings.read(file, GPU) == FOUND


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"gpu": "NVIDIA H100"}, "H100"),
        ({"layers": [{"heads": 1}]}, "KeyError"),
        ({"layers": [{"heads": 1, "kv_heads": 1, "head_size": 64, "decoding": {"2": {}},
                      "prefilling": None}]}, "tuple"),
        ({"layers": [{"heads": 1, "kv_heads": 1, "head_size": 64, "decoding": {},
                      "prefilling": {"tiles": 3}}]}, "tiles"),
        ({"layers": 3}, "TypeError"),
    ],
)  # fmt: skip
def test_a_file_that_says_something_else(
    change: dict[str, Any], found: str, tmp_path: Path
) -> None:
    file = tmp_path / "nvidia-h200.json"
    file.write_text(json.dumps({"gpu": GPU, "measured": {}, "layers": [], **change}))
    with pytest.raises(CompatError, match=found):
        settings.read(file, GPU)


def test_what_was_found_is_used_for_its_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_tuned", lambda gpu: FOUND if gpu == GPU else {})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
    layer = spec(device="cuda")
    assert settings.decoding(layer, 1, 1) == Decoding(32, 2, 5, 1, 2)
    assert settings.decoding(layer, 1, 16) == settings.decoding(spec(), 1, 16), "not tuned"
    assert settings.decoding(layer, 8, 1) == settings.decoding(spec(), 8, 1), "of one token alone"
    assert settings.prefilling(layer) == Prefilling(64, 64, 4, 3)
    other = dataclasses.replace(layer, head_size=64)
    assert settings.prefilling(other) == settings.prefilling(spec(64))


def test_the_search_finds_what_is_fastest() -> None:
    """A time for each setting, worst where two of them meet, as on a GPU."""
    wanted = Decoding(block_n=32, warps=2, stages=6, programs=3, least=4)

    def timer(option: Any, step: tuning.Step) -> float:
        weights = {"programs": 0.1, "least": 0.02}
        off = sum(
            weights.get(name, 0.5) * abs(value - getattr(wanted, name))
            for name, value in dataclasses.asdict(option).items()
        )
        return step.length * (1 + off)

    found, mean = tuning.decoding(16, timer)
    assert found == wanted
    lengths = [step.length for step in tuning.DECODED[16]]
    assert mean == pytest.approx(math.prod(lengths) ** (1 / len(lengths)))


def test_settings_without_room_are_not_chosen() -> None:
    def timer(option: Prefilling, step: tuning.Step) -> float:
        return math.inf if option.block_m == 128 else 1.0 + option.stages

    assert tuning.prefilling(timer)[0] == Prefilling(64, 64, 4, 2)


def test_candidates_are_few_and_distinct() -> None:
    assert len(set(tuning.decodings())) == len(tuning.DECODE_TILES) <= 24
    assert len(set(tuning.PREFILL_TILES)) == len(tuning.PREFILL_TILES) <= 24
    assert set(tuning.DECODED) == set(pieces.LOOKED_AT)
    for looked_at, steps in tuning.DECODED.items():
        assert all(pieces.looked_at(step.requests) == looked_at for step in steps)


def test_the_bench_does_not_score_what_the_tuner_was_timed_on() -> None:
    from infera_compat.bench import cells

    scored = {(cell.batch, max(cell.seq_lens)) for cell in cells.of_decoder() if not cell.ragged}
    tuned = {(step.requests, step.length) for steps in tuning.DECODED.values() for step in steps}
    assert not scored & tuned


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="run with TRITON_INTERPRET=1")
@pytest.mark.parametrize("step", [tuning.Step(3, 40), tuning.Step(2, 90, 30)])
def test_calls_are_timed(step: tuning.Step, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def graph_us(run: Any) -> float:
        run()
        ran.append(1)
        return 6.0

    monkeypatch.setattr(timing, "CACHE_BYTES", 1 << 20)
    monkeypatch.setattr(timing, "MOST_CALLS", 3)
    monkeypatch.setattr(replays, "graph_us", graph_us)
    layer = timing.Layer(spec(64, capability=None), torch.device("cpu"))
    calls = layer.calls(step)
    assert len(calls) == (3 if step.new == 1 else 2), "as many as the cache has blocks for"
    assert len({tuple(call.block_table.flatten().tolist()) for call in calls}) == len(calls)
    option = Decoding(block_n=32) if step.new == 1 else Prefilling(64, 32, 4, 2)
    assert layer.timer(16)(option, step) == 6.0 / len(calls)
    assert ran == [1]
    assert timing.compile_one(layer.spec, option, 16)
