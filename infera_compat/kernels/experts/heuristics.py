"""The plan of a layer that nobody tuned: right everywhere, and near the best where we looked.

Few tokens: what counts is bytes in flight, so tiles are small and programs many. Many: tiles as
large as an expert's rows fill.
"""

from __future__ import annotations

import dataclasses

from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.experts.plans import Few, Plan, Sorted, Tile
from infera_compat.kernels.experts.scratch import power_of_two
from infera_compat.kernels.limits import Limits

FEW = 32
"""The largest bucket that is run without sorting."""
BYTES = 2
"""Of an element: bfloat16 or float16."""
MARGIN = 64
"""Bytes a stage for barriers."""


def shared_bytes(tile: Tile, rows: int, weights: int) -> int:
    """Shared memory of a product. rows: of its tile. weights: tiles of weights a step."""
    return tile.stages * (rows + weights * tile.columns) * tile.depth * BYTES


def across_bytes(tile: Tile, rows: int, intermediate: int) -> int:
    """The same of a product that goes across: its rows, the weights of each stage, and a result."""
    channels = -(-intermediate // tile.depth) * tile.depth
    held = tile.stages * tile.columns * channels + rows * (channels + tile.columns)
    return held * BYTES + tile.stages * MARGIN


def fitting(tile: Tile, rows: int, weights: int, limits: Limits) -> Tile:
    """The tile, with fewer stages, then less depth, then fewer columns where memory is short."""
    tile = dataclasses.replace(tile, stages=min(tile.stages, limits.stages))
    while shared_bytes(tile, rows, weights) > limits.shared and tile.columns > 16:
        if tile.stages > 2:
            tile = dataclasses.replace(tile, stages=tile.stages - 1)
        elif tile.depth > 32:
            tile = dataclasses.replace(tile, depth=tile.depth // 2)
        else:
            tile = dataclasses.replace(tile, columns=tile.columns // 2)
    return tile


def rows_for(spec: ExpertsSpec, tokens: int) -> int:
    """Rows of a tile: a power of two that holds most experts' rows, 16 to 128."""
    mean = tokens * spec.top_k / spec.global_experts
    rows = 16
    while rows < 1.25 * mean and rows < 128:
        rows *= 2
    return rows


def columns_for(size: int, most: int) -> int:
    """Columns of a tile: the power of two up to `most` that leaves the least of the last unused."""
    options = [most >> shift for shift in range(3)]
    return min(options, key=lambda columns: (-(-size // columns) * columns, -columns))


def plan(spec: ExpertsSpec, bucket: int) -> Plan:
    """For the calls of a bucket."""
    limits = Limits.of(spec)
    if bucket <= FEW:
        return few(spec, bucket, limits)
    return sorted_by_expert(spec, rows_for(spec, bucket), limits)


def few(spec: ExpertsSpec, bucket: int, limits: Limits) -> Few:
    """Columns so that the programs fill a GPU even where only a few experts are read."""
    tokens = max(16, bucket)
    read = min(spec.experts, bucket * spec.top_k)
    narrow = 16 if read * spec.intermediate < ENOUGH else 32
    gate_up = Tile(narrow, 128, 4, 4)
    narrow = 16 if read * spec.hidden < ENOUGH else 64
    down = Tile(narrow, min(128, depth_for(spec.intermediate)), 4, 4)
    lines = lines_for(spec) if limits.early else 0
    return Few(fitting(gate_up, tokens, 2, limits), fitting(down, tokens, 1, limits), True, lines)


ENOUGH = 1 << 14
"""Rows of weights from which programs of the wider tile are enough for all SMs."""


def lines_for(spec: ExpertsSpec) -> int:
    """Lines of a row of the second product's weights, to ask for early: 2 KiB at most."""
    return min(16, power_of_two(-(-spec.intermediate // 64)))


def depth_for(size: int) -> int:
    """Channels at a time: 64, or more where they divide evenly."""
    return next((depth for depth in (256, 128) if size % depth == 0), 64)


def sorted_by_expert(spec: ExpertsSpec, rows: int, limits: Limits) -> Sorted:
    """One tile of the largest kind an SM, on GPUs with room for it."""
    large = rows == 128 and limits.tma
    warps = 8 if large else 4
    gate_up = Tile(columns_for(spec.intermediate, 128 if large else 64), 64, warps, 4)
    gate_up = fitting(gate_up, rows, 2, limits)
    down = going_across(spec, rows, limits) if rows >= FULL else None
    if down is None:
        down = Tile(columns_for(spec.hidden, 256 if large else 128), 64, warps, 4)
        down = fitting(down, rows, 1, limits)
    return Sorted(rows, gate_up, down)


FULL = 64
"""Rows from which what a second product writes is much, beside the weights that it reads."""
NARROW = 256
"""Channels of an expert, at most, whose second product may go across columns."""
PROGRAMS = 1024
"""Of a product that goes across, at least: some for each SM, even if experts have a tile each."""
LEAST = 4
"""Column tiles of such a program, at least: fewer, and its rows come too late."""


def going_across(spec: ExpertsSpec, rows: int, limits: Limits) -> Tile | None:
    """A second product that goes across columns; None where a GPU has no room for it."""
    if spec.intermediate > NARROW:
        return None
    many = rows >= 128
    columns = columns_for(spec.hidden, 128 if many else 64)
    while columns >= 32:
        tile = across_tile(spec, Tile(columns, 64, 8 if many else 4, 2))
        if across_bytes(tile, rows, spec.intermediate) <= limits.shared:
            return tile
        columns //= 2
    return None


def across_tile(spec: ExpertsSpec, tile: Tile, wider: int = 1) -> Tile:
    """The tile, going across. wider: how many times as many column tiles as otherwise."""
    whole = power_of_two(spec.intermediate)
    # Channels at once where they fill a power of two: one wait a column tile.
    depth = whole if whole == spec.intermediate else 64
    tiles = -(-spec.hidden // tile.columns)
    spans = min(power_of_two(-(-PROGRAMS // spec.experts)), max(1, tiles // LEAST))
    across = -(-tiles // max(1, spans // wider))
    return dataclasses.replace(tile, depth=max(16, depth), across=across)
