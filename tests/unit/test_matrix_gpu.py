"""What a GPU machine measured goes into its release's result, and stays there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infera_compat.errors import CompatError
from infera_compat.matrix import gpu
from infera_compat.matrix.checkout import Checkout

MACHINE = {
    "gpu": "NVIDIA H200", "torch": "2.11.0", "label": "not its own torch", "release": "0.33.0",
    "commit": "abc", "date": "2026-11-30",
}  # fmt: skip
ROWS = [
    {"backend": "FLASH_ATTN", "layout": "NHD", "status": "proved", "regime": "(B, 2, N, H, D)"},
    {"backend": "FLASH_ATTN", "layout": "HND", "status": "proved", "regime": "(B, 2, N, H, D)"},
    {"backend": "ROCM_ATTN", "status": "refused", "reason": "packed (K in pieces)"},
]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("matrix/results", "matrix/contracts", "shims", "infera_compat"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "matrix/releases.toml").write_text("")
    (tmp_path / "matrix/results/0.33.0.json").write_text(json.dumps({"cells": [1], "gpu": ["old"]}))
    return Checkout.at(tmp_path)


def written(folder: Path, name: str, body: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps(body))
    return file


def test_cells_replace_the_older_ones_and_leave_the_rest(
    checkout: Checkout, tmp_path: Path
) -> None:
    file = written(tmp_path, "x.json", {"gpu": ["new"], "gpu_machine": MACHINE})
    assert gpu.take(checkout, file) == "0.33.0"
    body = json.loads((checkout.results / "0.33.0.json").read_text())
    assert body == {"cells": [1], "gpu": ["new"], "gpu_machine": MACHINE}


def test_kv_views_are_told_by_backend(checkout: Checkout, tmp_path: Path) -> None:
    body = {"release": "0.33.0+cu130", "kernels": "stock", "rows": ROWS}
    assert gpu.take(checkout, written(tmp_path, "kv.json", body)) == "0.33.0"
    lines = list(gpu.told(json.loads((checkout.results / "0.33.0.json").read_text())))
    assert "| FLASH_ATTN | (B, 2, N, H, D) | NHD, HND | proved |" in lines
    assert "| ROCM_ATTN | – | – | refused: packed |" in lines


def test_the_machine_is_told() -> None:
    (line,) = gpu.told({"gpu_machine": MACHINE})
    assert "NVIDIA H200" in line
    assert "(not its own torch)" in line


def test_another_file_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    with pytest.raises(CompatError, match="no result of a GPU machine"):
        gpu.take(checkout, written(tmp_path, "y.json", {"cells": []}))


def test_a_release_without_a_result_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    body = {"gpu": [], "gpu_machine": {**MACHINE, "release": "0.99.0"}}
    with pytest.raises(CompatError, match=r"release 0\.99\.0 has no result yet"):
        gpu.take(checkout, written(tmp_path, "z.json", body))
