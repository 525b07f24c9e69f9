"""How our Triton kernels of attention cut a step: found by a tuner on a GPU, else what fits one.

What `infera-compat tune attention` found on a GPU lies in a JSON file of that GPU beside this
module:

    {"gpu": "NVIDIA H200",
     "measured": {"torch": "2.11.0", "triton": "3.6.0", "date": "2026-11-02"},
     "layers": [{"heads": 32, "kv_heads": 8, "head_size": 128,
                 "decoding": {"1": {"block_n": 64, "warps": 4, ...}, "16": {...}, "256": {...}},
                 "prefilling": {"block_m": 128, ...}}]}
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from infera_compat.errors import CompatError
from infera_compat.kernels.attention import arguments
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.limits import Limits
from infera_compat.kernels.pieces import LOOKED_AT
from infera_compat.kernels.table import slug
from infera_compat.matrix import files

FOLDER = Path(__file__).parent / "configs"
LAYER = ("heads", "kv_heads", "head_size")
HALF = 2
"""Bytes of an element."""
TUNED_QUERIES = 1
"""Query tokens of a request that the tuner decodes; more of them fill larger tiles."""

Layer = tuple[int, ...]
"""A layer's sizes, in the order of LAYER."""


@dataclass(frozen=True)
class Decoding:
    """How the keys of a step are cut into pieces.

    block_n: keys of a tile. warps, stages: of a program. programs: wanted on each multiprocessor.
    least: tiles of a piece at least.
    """

    block_n: int = 64
    warps: int = 4
    stages: int = 4
    programs: int = 2
    least: int = 1


@dataclass(frozen=True)
class Prefilling:
    """How prompts are cut. block_m: rows of a tile of queries. block_n: keys of a tile."""

    block_m: int = 128
    block_n: int = 64
    warps: int = 8
    stages: int = 3


@dataclass(frozen=True)
class Found:
    """What a tuner found for a layer. decoding: by one of pieces.LOOKED_AT."""

    decoding: Mapping[int, Decoding]
    prefilling: Prefilling | None = None


def layer(spec: AttentionSpec) -> Layer:
    """The sizes that a layer's settings depend on."""
    return tuple(int(getattr(spec, name)) for name in LAYER)


def decoding(spec: AttentionSpec, queries: int, looked_at: int) -> Decoding:
    """How steps of up to `queries` query tokens a request, and `looked_at` requests, are cut."""
    found = _found(spec)
    if found is not None and queries == TUNED_QUERIES and looked_at in found.decoding:
        return found.decoding[looked_at]
    limits, channels = Limits.of(spec), arguments.channels(spec)
    rows = queries * (spec.heads // spec.kv_heads)
    two = (
        Decoding(),
        Decoding(stages=3),
        Decoding(block_n=32, stages=3),
        Decoding(block_n=32, stages=2),
    )
    options = [*two, *(replace(it, programs=1) for it in two)]
    return next(
        (it for it in options if _fits(decoding_bytes(it, rows, channels), it, limits)),
        options[-1],
    )


def prefilling(spec: AttentionSpec) -> Prefilling:
    """How a layer's prompts are cut."""
    found = _found(spec)
    if found is not None and found.prefilling is not None:
        return found.prefilling
    limits, channels = Limits.of(spec), arguments.channels(spec)
    wide, deep = Prefilling(block_n=128), Prefilling()
    narrow = Prefilling(block_n=32)
    options = (wide, deep, narrow) if channels <= 64 else (deep, narrow)
    options = (*options, Prefilling(64, 32, 4, 3), Prefilling(64, 32, 4, 2))
    return next(
        (it for it in options if _fits(prefilling_bytes(it, channels, limits), it, limits)),
        options[-1],
    )


def decoding_bytes(settings: Decoding, rows: int, channels: int) -> int:
    """Shared memory of all programs of a multiprocessor, as Triton 3.6 takes it for sm_90.

    A tile of keys and one of values in each stage but the last, the queries, and the weights.
    """
    pairs = (settings.stages - 1) * 2 * settings.block_n * channels
    rest = rows * (channels + settings.block_n)
    return settings.programs * HALF * (pairs + rest)


def prefilling_bytes(settings: Prefilling, channels: int, limits: Limits) -> int:
    """The same of a program of prefill: Hopper's products read the last stage there too."""
    stages = settings.stages if limits.tma else settings.stages - 1
    pairs = stages * 2 * settings.block_n * channels
    return HALF * (pairs + settings.block_m * channels)


def _fits(bytes_: int, settings: Decoding | Prefilling, limits: Limits) -> bool:
    return bytes_ <= limits.shared and settings.stages <= limits.stages


def path(gpu: str, folder: Path = FOLDER) -> Path:
    """The file of a GPU, whether there is one or not. gpu: the device's name."""
    return folder / f"{slug(gpu)}.json"


def read(file: Path, gpu: str) -> dict[Layer, Found]:
    """What was found on a GPU, by layer; CompatError for a file that says something else."""
    try:
        body = json.loads(file.read_bytes())
        if body["gpu"] != gpu:
            raise ValueError(f"it is of {body['gpu']!r}")
        return {
            tuple(int(its[name]) for name in LAYER): Found(
                {
                    LOOKED_AT[LOOKED_AT.index(int(key))]: Decoding(**value)
                    for key, value in its["decoding"].items()
                },
                None if its["prefilling"] is None else Prefilling(**its["prefilling"]),
            )
            for its in body["layers"]
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CompatError(
            f"{file} has no settings for attention",
            found=f"{type(error).__name__}: {error}"[:300],
            expected=f"what `infera-compat tune attention` wrote on {gpu}",
            do="Tune again, or take the file away.",
        ) from error


def write(file: Path, gpu: str, measured: Mapping[str, str], layers: Mapping[Layer, Found]) -> None:
    """Write a file that `read` reads."""
    body: dict[str, Any] = {"gpu": gpu, "measured": dict(measured), "layers": []}
    for sizes, found in sorted(layers.items()):
        body["layers"].append(
            {
                **dict(zip(LAYER, sizes, strict=True)),
                "decoding": {str(at): asdict(its) for at, its in sorted(found.decoding.items())},
                "prefilling": None if found.prefilling is None else asdict(found.prefilling),
            }
        )
    files.put_json(file, body)


@functools.cache
def _tuned(gpu: str) -> Mapping[Layer, Found]:
    file = path(gpu)
    return read(file, gpu) if file.is_file() else {}


def _found(spec: AttentionSpec) -> Found | None:
    if spec.device != "cuda":
        return None
    return _tuned(torch.cuda.get_device_name()).get(layer(spec))
