"""`auto` in real engines: a kernel with records is bound and runs, and an accident leaves stock.

On a CPU, where `auto` never chooses: the distribution of this test lets it, by a plugin of its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import DENSE, Run
from test_kernels import FLOAT32, owns_the_cache

from infera_compat.kernels import sources
from infera_compat.release import Release
from infera_shims.engines.weights import TINY

NAME = "measured_attention"
MODULE = """
from infera_compat.kernels.attention.reference import ReferenceAttention

class Measured(ReferenceAttention):
    name = "measured_attention"

    def workspace(self, spec, sizes):
        {workspace}

    def warm_up(self, spec, sizes, device, store):
        {warm_up}

KERNEL = Measured()


def allow_a_cpu():
    from infera_compat import install

    install.MEASURED_ON = ("cuda", "cpu")
"""
RIGHT = {"workspace": "return 64", "warm_up": "pass"}
MISTAKE = 'raise ValueError("a mistake in it")'
BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Way:
    """One start. source: of the kernel's methods; spoil: what is then broken of what it ships."""

    source: Mapping[str, str]
    spoil: Callable[[Path], Any] = lambda folder: None
    arguments: Mapping[str, Any] | None = None
    said: str = ""
    warned: bool = False


def _break(kind: str) -> Callable[[Path], Any]:
    return lambda folder: next(folder.glob(f"records/{kind}-*")).write_text("[]", "utf-8")


STOCK = {
    "a broken record": Way(RIGHT, _break("bench"), said="is no record", warned=True),
    "workspace fails": Way({**RIGHT, "workspace": MISTAKE}, said="workspace failed", warned=True),
    "warm_up fails": Way({**RIGHT, "warm_up": MISTAKE}, said="warm_up failed", warned=True),
    "slower": Way(
        RIGHT,
        lambda folder: _table(folder, stock_us=1.0),
        said="its table prefers stock everywhere",
    ),
    "a backend of the user's": Way(
        RIGHT,
        arguments={"attention_backend": "CPU_ATTN"},
        said="vLLM was told its attention backend, CPU_ATTN",
    ),
}


def _table(folder: Path, stock_us: float = 2.0) -> None:
    sizes = {"heads": TINY.heads, "kv_heads": TINY.kv_heads, "head_size": TINY.head_size}
    times = {"stock_us": stock_us, "ours_us": 1.0}
    cells = [
        {"baseline": "CPU_ATTN", "batch": 8, "block_size": block, **sizes, **times}
        for block in BLOCK_SIZES
    ]
    measured = {"release": "0.32.0", "commit": "1a2b3c4", "date": "2026-11-30"}
    table = {"kernel": NAME, "gpu": "cpu", "measured": measured, "cells": cells}
    _put(folder / "tables" / f"{NAME}-cpu.json", table)


def _put(file: Path, body: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(body), "utf-8")


@pytest.fixture
def installed(tmp_path: Path, release: Release, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the kernel of a way beside vLLM, with all that `auto` asks for; returns the path."""

    def install(way: Way) -> str:
        package = tmp_path / "measured"
        package.mkdir()
        (package / "__init__.py").write_text(MODULE.format(**way.source), "utf-8")
        about = tmp_path / "measured-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: measured\nVersion: 1.0\n", "utf-8"
        )
        (about / "entry_points.txt").write_text(
            f"[infera_compat.kernels]\n{NAME} = measured:KERNEL\n"
            "[vllm.general_plugins]\nallow_a_cpu = measured:allow_a_cpu\n",
            "utf-8",
        )
        monkeypatch.syspath_prepend(tmp_path)
        sources.of.cache_clear()
        told = {"gpu": "cpu", "sources": {NAME: sources.of("measured")}}
        times = {"kernel": NAME, "baseline": "CPU_ATTN", "stock_us": 2.0, "ours_us": 1.0}
        outcomes = [{"check": "numerics", "status": "pass"}]
        _put(
            package / "records" / f"verify-{NAME}-cpu.json",
            {**told, "kernel": NAME, "outcomes": outcomes, "passed": True},
        )
        _put(
            package / "records" / "bench-attention-cpu.json",
            {**told, "release": str(release.version), "cells": [times]},
        )
        _table(package)
        way.spoil(package)
        return str(tmp_path)

    return install


@pytest.fixture(scope="session")
def stock(start: Callable[..., Run]) -> Callable[[], Run]:
    """The same model by stock vLLM, started once."""
    off = {"INFERA_VLLM_OPS_DISABLE": "1"}
    return functools.cache(lambda: start("stock-auto", (DENSE,), False, False, **off, **FLOAT32))


def test_a_kernel_with_records_is_chosen_and_runs_in_every_step(
    start: Callable[..., Run], stock: Callable[[], Run], installed: Any, release: Release
) -> None:
    path = installed(Way(RIGHT))
    run = start("auto-kernel", (DENSE,), False, True, PYTHONPATH=path, **FLOAT32)
    (report,) = run.models[DENSE]["reports"]
    layers = [layer for layer in report["layers"] if layer["op"] == "attention"]
    ours, theirs = run.requests(DENSE), stock().requests(DENSE)
    if not owns_the_cache(release):
        assert report["ops"]["attention"]["kernel"] is None
        assert f"auto: {NAME} takes no layer" in report["ops"]["attention"]["why_not"]
        assert ours == theirs
        return
    assert any(f"attention: {NAME} (auto) by get_attn_backend_cls" in x for x in run.our_lines())
    for layer in layers:
        assert (layer["kernel"], layer["calls"]["handed"]) == (NAME, 0), layer
        assert layer["calls"]["serving"] == report["steps"] >= 24, layer
    assert [x["ids"] for x in ours] == [x["ids"] for x in theirs]
    assert ours != theirs, "a kernel that never ran would give stock's very bits"


@pytest.mark.parametrize("what", STOCK)
def test_it_stays_stock_to_the_bit(
    start: Callable[..., Run],
    stock: Callable[[], Run],
    installed: Any,
    release: Release,
    what: str,
) -> None:
    way = STOCK[what]
    if what.endswith("fails") and not owns_the_cache(release):
        pytest.skip(f"{release} refuses each layer before")
    path = installed(way)
    run = start(
        "auto-stock", (DENSE,), False, True, arguments=way.arguments, PYTHONPATH=path, **FLOAT32
    )
    assert run.requests(DENSE) == stock().requests(DENSE)
    (report,) = run.models[DENSE]["reports"]
    assert all(layer["kernel"] is None for layer in report["layers"])
    choice = report["ops"]["attention"]
    assert choice["kernel"] is None
    assert way.said in choice["why_not"], choice
    warnings = [line for line in run.our_lines() if "WARNING" in line and way.said in line]
    assert len(warnings) == int(way.warned), run.our_lines()
    for line in warnings:
        assert all(part in line for part in ("Found: ", "Expected: ", "INFERA_VLLM_OPS_DISABLE=1"))
