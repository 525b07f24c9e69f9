"""The plans that the tuner found on a GPU: a JSON file a GPU, beside this module.

    {"gpu": "NVIDIA H200",
     "measured": {"torch": "2.11.0", "triton": "3.6.0", "date": "2026-11-02"},
     "layers": [{"experts": 8, "top_k": 2, "hidden": 4096, "intermediate": 14336,
                 "plans": {"1": {"kind": "few", "merge": true, "gate_up": {...}, "down": {...}}}}]}

A layer that is not in it has the plans of heuristics.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infera_compat.errors import CompatError
from infera_compat.kernels.experts import heuristics
from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.experts.plans import BUCKETS, Plan, decode, encode
from infera_compat.kernels.table import slug
from infera_compat.matrix import files

FOLDER = Path(__file__).parent / "configs"
LAYER = ("experts", "top_k", "hidden", "intermediate")

Layer = tuple[int, ...]
"""A layer's sizes, in the order of LAYER."""
Plans = Mapping[int, Plan]
"""By bucket."""


def layer(spec: ExpertsSpec) -> Layer:
    """The sizes that a layer's plans depend on."""
    return tuple(int(getattr(spec, name)) for name in LAYER)


def path(gpu: str, folder: Path = FOLDER) -> Path:
    """The file of a GPU, whether there is one or not. gpu: the device's name."""
    return folder / f"{slug(gpu)}.json"


@functools.cache
def tuned(gpu: str, folder: Path = FOLDER) -> Mapping[Layer, Plans]:
    """What was found on a GPU, by layer; raises CompatError for a file that says something else."""
    file = path(gpu, folder)
    if not file.is_file():
        return {}
    return read(file, gpu)


def read(file: Path, gpu: str) -> dict[Layer, dict[int, Plan]]:
    """The same from a file."""
    try:
        body = json.loads(file.read_bytes())
        if body["gpu"] != gpu:
            raise ValueError(f"it is of {body['gpu']!r}")
        return {
            tuple(int(its[name]) for name in LAYER): {
                BUCKETS[BUCKETS.index(int(bucket))]: decode(plan)
                for bucket, plan in its["plans"].items()
            }
            for its in body["layers"]
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CompatError(
            f"{file} has no plans for infera_experts",
            found=f"{type(error).__name__}: {error}"[:300],
            expected=f"what `infera-compat tune experts` wrote on {gpu}",
            do="Tune again, or take the file away.",
        ) from error


def write(file: Path, gpu: str, measured: Mapping[str, str], layers: Mapping[Layer, Plans]) -> None:
    """Write a file that `read` reads."""
    body: dict[str, Any] = {"gpu": gpu, "measured": dict(measured), "layers": []}
    for sizes, plans in sorted(layers.items()):
        its = {str(bucket): encode(plans[bucket]) for bucket in sorted(plans)}
        body["layers"].append({**dict(zip(LAYER, sizes, strict=True)), "plans": its})
    files.put_json(file, body)


def plan(spec: ExpertsSpec, bucket: int, gpu: str) -> Plan:
    """How a layer's calls of a bucket are run on a GPU."""
    found = tuned(gpu).get(layer(spec), {})
    return found[bucket] if bucket in found else heuristics.plan(spec, bucket)
