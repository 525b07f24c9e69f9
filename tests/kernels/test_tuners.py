"""The tuners' commands from end to end in Triton's interpreter: all but the clock and processes.

By itself: TRITON_INTERPRET=1 pytest tests/kernels/test_tuners.py. Without it, a test of
test_infera_attention_compiled.py runs this file in a process of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import triton
from rich.console import Console

from infera_compat.cli import tune, tune_attention
from infera_compat.errors import CompatError
from infera_compat.kernels import replays
from infera_compat.kernels.attention import settings
from infera_compat.kernels.attention import timing as attention_timing
from infera_compat.kernels.attention import tuning as attention_tuning
from infera_compat.kernels.experts import configs
from infera_compat.kernels.experts import timing as experts_timing
from infera_compat.kernels.experts import tuning as experts_tuning
from infera_compat.kernels.experts.plans import Tile

GPU = "FAKE GPU"
interpreted = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1"
)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A GPU that is the interpreter; each thing that is timed is run, and slower than the last."""
    times: list[float] = []
    clock = count(1)

    def graph_us(run: Callable[[], None]) -> float:
        run()
        times.append(float(next(clock)))
        return times[-1]

    def in_turn(
        function: Callable[..., bool], work: Iterable[Any], processes: int, told: Callable[[], None]
    ) -> int:
        assert processes >= 1
        failed = 0
        for each in dict.fromkeys(work):
            failed += not function(*each)
            told()
        return failed

    monkeypatch.setattr(tune, "here", lambda: tune.Machine(GPU, None, "cpu"))
    monkeypatch.setattr(replays, "graph_us", graph_us)
    monkeypatch.setattr(replays, "in_processes", in_turn)
    return times


@interpreted
def test_attention(timed: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = attention_tuning.Step
    monkeypatch.setattr(attention_timing, "CACHE_BYTES", 1 << 19)
    monkeypatch.setattr(attention_timing, "MOST_CALLS", 2)
    monkeypatch.setattr(attention_tuning, "DECODE_TILES", ({"block_n": 32}, {"block_n": 64}))
    monkeypatch.setattr(attention_tuning, "CUT", (("programs", (2, 4)),))
    steps = {1: (step(1, 40),), 16: (step(2, 40),), 256: (step(17, 20),)}
    monkeypatch.setattr(attention_tuning, "DECODED", steps)
    monkeypatch.setattr(attention_tuning, "PREFILLED", (step(1, 40, 20),))
    monkeypatch.setattr(attention_tuning, "PREFILL_TILES", attention_tuning.PREFILL_TILES[-2:])
    console = Console(width=160, record=True)
    assert tune_attention.attention(["4,2,64"], tmp_path, console) == 0
    found = settings.read(settings.path(GPU, tmp_path), GPU)
    ((layer, its),) = found.items()
    assert layer == (4, 2, 64)
    assert set(its.decoding) == {1, 16, 256}
    assert {each.block_n for each in its.decoding.values()} == {32}, "the first was the fastest"
    assert its.prefilling == attention_tuning.PREFILL_TILES[0]
    assert "4 heads over 2, 64 channels" in console.export_text()
    assert len(timed) == 3 * (2 * 3 + 3) + 2, "tiles by programs, what is cut, and prompts"


@interpreted
def test_experts(timed: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = Tile(16, 32, 4, 2)
    monkeypatch.setattr(experts_timing, "SETS", 1)
    monkeypatch.setattr(experts_timing, "MOST_CALLS", 1)
    monkeypatch.setattr(experts_timing, "FEWEST_CALLS", 1)
    monkeypatch.setattr(replays, "events_us", lambda run: (run(), 1.0)[1])
    monkeypatch.setattr(experts_tuning, "FEW_TILES", (tile,))
    monkeypatch.setattr(experts_tuning, "SORTED_TILES", {16: (tile,)})
    monkeypatch.setattr(experts_tuning, "SORTED_FROM", 8)
    console = Console(width=160, record=True)
    assert tune.experts(["4,2,32,16"], [1, 16], tmp_path, console) == 0
    found = configs.read(configs.path(GPU, tmp_path), GPU)
    ((layer, plans),) = found.items()
    assert layer == (4, 2, 32, 16)
    assert set(plans) == {1, 16}
    assert "4 experts, top 2, 32 by 16" in console.export_text()
    assert len(timed) >= 4


@pytest.mark.parametrize("command", [tune_attention.attention, tune.experts])
def test_without_a_gpu_there_is_nothing_to_tune(command: Any) -> None:
    others = ([], [], None) if command is tune.experts else ([], None)
    with pytest.raises(CompatError, match="no GPU"):
        command(*others, Console())


@pytest.mark.parametrize("text", ["", "32,8", "32,8,128,16", "32,8,wide"])
def test_what_is_no_layer(text: str) -> None:
    with pytest.raises(CompatError, match="is no layer"):
        tune_attention.sizes(text)


def test_processes_are_told_of_and_their_failures_counted() -> None:
    told: list[int] = []
    work = [(4.0,), (2.0,), (0.0,), (4.0,)]
    failed = replays.in_processes(math.sqrt, work, 2, lambda: told.append(1))  # type: ignore[arg-type]
    assert (failed, len(told)) == (True, 3), "sqrt(0) is false; the second 4 is the first"
