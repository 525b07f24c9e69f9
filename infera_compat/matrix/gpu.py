"""What a GPU machine measured of a release: kept in its result beside what ran on the CPU.

Written there by matrix/seams_gpu.py and matrix/kv_views_gpu.py, carried here as files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infera_compat.errors import CompatError
from infera_compat.matrix import files
from infera_compat.matrix.checkout import Checkout

CELLS, MACHINE, KV_VIEWS = "gpu", "gpu_machine", "kv_views"
PARTS = (CELLS, MACHINE, KV_VIEWS)
"""The parts of a result that no run on a CPU writes anew."""


def take(checkout: Checkout, file: Path) -> str:
    """Put a file of a GPU machine into the result of its release; returns the release.

    Raises CompatError for a file that neither script wrote, and for a release without a result.
    """
    body = files.load(file)
    if CELLS in body and MACHINE in body:
        release = body[MACHINE].get("release") or file.stem
        parts = {CELLS: body[CELLS], MACHINE: body[MACHINE]}
    elif "rows" in body and "kernels" in body:
        release = body["release"].partition("+")[0]
        parts = {KV_VIEWS: body}
    else:
        raise CompatError(
            f"{file} is no result of a GPU machine",
            found=f"a JSON object with {', '.join(body)}",
            expected="what matrix/seams_gpu.py or matrix/kv_views_gpu.py wrote",
            do="Give such a file.",
        )
    target = checkout.results / f"{release}.json"
    if not target.is_file():
        raise CompatError(
            f"release {release} has no result yet",
            found=f"no {target}",
            expected="one that `make matrix` wrote",
            do=f'Run make matrix MATRIX="--release {release}" first.',
        )
    files.put_json(target, files.load(target) | parts)
    return str(release)


def told(body: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: the machine of the GPU's cells, and the KV views that were proved."""
    machine = body.get(MACHINE)
    if machine is not None:
        label = f" ({machine['label']})" if machine["label"] else ""
        yield (
            f"\nOn a GPU: {machine['gpu']}, torch {machine['torch']}{label}, {machine['date']}, at "
            f"{machine['commit']}; two layers of each model."
        )
    if KV_VIEWS in body:
        yield "\n| KV cache of | as `impl.forward` sees it | layouts probed | |"
        yield "|---|---|---|---|"
        for backend, rows in _by_backend(body[KV_VIEWS]["rows"]).items():
            regimes = dict.fromkeys(row["regime"] for row in rows if row.get("regime"))
            layouts = dict.fromkeys(str(row.get("layout") or "–") for row in rows)
            statuses = dict.fromkeys(_status(row) for row in rows)
            cells = (", ".join(values) or "–" for values in (regimes, layouts, statuses))
            yield f"| {backend} | {' | '.join(cells)} |"


def _status(row: Mapping[str, Any]) -> str:
    reason = row.get("reason")
    return f"{row['status']}: {reason.partition(' (')[0]}" if reason else str(row["status"])


def _by_backend(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["backend"], []).append(row)
    return found
