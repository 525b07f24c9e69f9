"""What a kernel's distribution ships beside its module: a table, records of verify and bench."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infera_compat.kernels.table import KEYS, file_of

GPU = "NVIDIA Fake"
MEASURED = {"release": "0.32.0", "commit": "1a2b3c4", "date": "2026-11-30"}
SIZES = {
    "attention": {"heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16},
    "mla_decode": {"heads": 16, "latent": 512, "rope": 64, "block_size": 64},
    "experts": {"experts": 8, "top_k": 2, "hidden": 64, "intermediate": 32},
}
STOCK = {"attention": "FLASH_ATTN", "mla_decode": "FLASHMLA", "experts": "TritonExperts"}


def cell(op: str, size: int = 8, stock: float = 2.0, **key: Any) -> dict[str, Any]:
    """A cell of a table, in which stock takes `stock` times as long as the kernel."""
    times = {"stock_us": stock, "ours_us": 1.0}
    return {"baseline": STOCK[op], KEYS[op][0]: size, **SIZES[op], **times, **key}


def table(name: str, *cells: Mapping[str, Any], gpu: str = GPU) -> dict[str, Any]:
    return {"kernel": name, "gpu": gpu, "measured": MEASURED, "cells": list(cells)}


def verified(name: str, digest: str, **fields: Any) -> dict[str, Any]:
    """A record of verify in which all held."""
    return {
        "kernel": name,
        "gpu": GPU,
        "sources": {name: digest},
        "outcomes": [{"check": "numerics", "status": "pass"}, {"check": "x", "status": "not run"}],
        "passed": True,
    } | fields


def benched(name: str, digest: str, *cells: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A record of bench with a cell for each of `cells`, or one over FLASH_ATTN."""
    times = {"kernel": name, "stock_us": 2.0, "ours_us": 1.0}
    return {
        "gpu": GPU,
        "release": "0.32.0",
        "sources": {name: digest},
        "cells": [times | dict(each) for each in cells or ({"baseline": "FLASH_ATTN"},)],
    } | fields


def put(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def ship(
    folder: Path,
    name: str,
    digest: str,
    op: str = "attention",
    *,
    over: str | None = None,
    cells: int = 1,
    release: str = "0.32.0",
    gpu: str = GPU,
) -> None:
    """Put all that `auto` asks for beside a kernel's module in `folder`.

    over: the stock code that it measured faster than, in so many `cells`.
    """
    baseline = over or STOCK[op]
    rows = [cell(op, 8 * (n + 1), baseline=baseline) for n in range(cells)]
    put(file_of(folder, name, gpu), table(name, *rows, gpu=gpu))
    put(folder / "records" / f"verify-{name}-fake.json", verified(name, digest, gpu=gpu))
    told = benched(name, digest, {"baseline": baseline}, gpu=gpu, release=release)
    put(folder / "records" / f"bench-{op}-{name}-fake-{release}.json", told)
