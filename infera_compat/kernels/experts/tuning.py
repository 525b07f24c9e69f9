"""Which plan is the fastest for a layer and a bucket: the candidates, and the search among them.

Knows no GPU: who calls it hands over what times a plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from infera_compat.kernels.experts import heuristics
from infera_compat.kernels.experts.contract import ExpertsSpec
from infera_compat.kernels.experts.heuristics import MARGIN, across_bytes, shared_bytes
from infera_compat.kernels.experts.plans import BUCKETS, MOST_FEW, Few, Plan, Sorted, Tile
from infera_compat.kernels.experts.scratch import power_of_two
from infera_compat.kernels.limits import Limits

Timer = Callable[[Plan], float]
"""Microseconds of a call by a plan; infinity where it can't be run."""

MOST = 24
"""Candidates for each of the two products, at most."""

FEW_TILES: Sequence[Tile] = (
    Tile(16, 128, 4, 4),
    Tile(16, 256, 4, 4),
    Tile(16, 256, 2, 3),
    Tile(32, 128, 4, 4),
    Tile(32, 256, 4, 3),
    Tile(64, 64, 4, 5),
    Tile(64, 128, 4, 3),
    Tile(128, 64, 8, 4),
)
"""For few tokens, both products."""

SORTED_TILES: Mapping[int, Sequence[Tile]] = {
    16: (
        Tile(32, 128, 4, 4),
        Tile(32, 256, 4, 3),
        Tile(64, 64, 4, 5),
        Tile(64, 128, 4, 3),
        Tile(64, 128, 4, 4),
        Tile(128, 64, 4, 4),
        Tile(128, 64, 8, 4),
        Tile(128, 128, 8, 3),
    ),
    64: (
        Tile(64, 64, 4, 3),
        Tile(64, 64, 4, 4),
        Tile(64, 128, 4, 3),
        Tile(64, 64, 4, 3, per_sm=2),
        Tile(128, 64, 4, 3),
        Tile(128, 64, 4, 4),
        Tile(128, 64, 8, 4),
        Tile(128, 64, 4, 4, per_sm=1),
    ),
    128: (
        Tile(64, 64, 4, 3),
        Tile(64, 64, 4, 3, per_sm=2),
        Tile(64, 64, 8, 4),
        Tile(64, 128, 8, 3),
        Tile(128, 64, 8, 3),
        Tile(128, 64, 8, 4),
        Tile(128, 64, 8, 4, per_sm=1),
        Tile(128, 64, 8, 4, group=16),
    ),
    256: (
        Tile(64, 64, 8, 3),
        Tile(64, 64, 8, 4),
        Tile(64, 64, 8, 4, per_sm=1),
    ),
}
"""By rows, from that many on: of the first product. The second one has twice the columns, since it
multiplies one tile of weights a step and not two."""

ACROSS_TILES: Mapping[int, Sequence[tuple[Tile, int]]] = {
    16: (
        (Tile(64, 64, 4, 2), 1),
        (Tile(64, 64, 4, 3), 1),
        (Tile(128, 64, 4, 2), 1),
    ),
    64: (
        (Tile(64, 64, 4, 2), 1),
        (Tile(64, 64, 4, 2), 2),
        (Tile(64, 64, 4, 3), 1),
        (Tile(128, 64, 4, 2), 1),
        (Tile(128, 64, 8, 2), 1),
    ),
    128: (
        (Tile(128, 64, 8, 2), 1),
        (Tile(128, 64, 8, 2), 2),
        (Tile(64, 64, 8, 2), 1),
        (Tile(64, 64, 8, 3), 1),
        (Tile(32, 64, 8, 2), 1),
    ),
    256: (
        (Tile(64, 64, 8, 2), 1),
        (Tile(32, 64, 8, 3), 1),
    ),
}
"""By rows, of a second product that goes across columns, and how much wider than the heuristic's.
Depth is the heuristic's."""


T = TypeVar("T")


def for_rows(options: Mapping[int, Sequence[T]], rows: int) -> Sequence[T]:
    """What a table by rows has for so many."""
    return options[max(least for least in options if least <= rows)]


def rows_options(spec: ExpertsSpec, bucket: int) -> tuple[int, ...]:
    """Rows that are worth a try: what the heuristic says, and its neighbours."""
    said = heuristics.rows_for(spec, bucket)
    options = [rows for rows in (said, said // 2, 2 * said) if 16 <= rows <= 256]
    return tuple(options[:2] if bucket <= MOST_FEW else options)


def is_usable(tile: Tile, rows: int, spec: ExpertsSpec, weights: int, limits: Limits) -> bool:
    """Whether a GPU has room for a tile, and a product the columns."""
    size = spec.intermediate if weights == 2 else spec.hidden
    if tile.across:
        fits = across_bytes(tile, rows, spec.intermediate) <= limits.shared
        return fits and tile.stages <= limits.stages and tile.columns <= power_of_two(size)
    fits = shared_bytes(tile, rows, weights) + tile.stages * MARGIN <= limits.shared
    # What persists needs the result's tile in shared memory too, beside the next ones.
    if tile.per_sm:
        result = rows * tile.columns * heuristics.BYTES
        fits = fits and shared_bytes(tile, rows, weights) + result <= limits.shared // tile.per_sm
    return fits and tile.stages <= limits.stages and tile.columns <= max(128, power_of_two(size))


def candidates(spec: ExpertsSpec, bucket: int, product: str) -> list[Plan]:
    """Plans that differ from the heuristic's in one product. product: gate_up or down."""
    limits = Limits.of(spec)
    weights = 2 if product == "gate_up" else 1
    found: list[Plan] = []
    for plan in starts(spec, bucket):
        rows = plan.rows if isinstance(plan, Sorted) else max(16, bucket)
        usable = [
            tile
            for tile in _options(spec, plan, product)
            if is_usable(tile, rows, spec, weights, limits)
        ]
        for tile in usable[: MOST // 3]:
            values: dict[str, Any] = {product: tile}
            found.append(dataclasses.replace(plan, **values))
    return found


def starts(spec: ExpertsSpec, bucket: int) -> Iterator[Plan]:
    """A plan of each kind and each number of rows."""
    limits = Limits.of(spec)
    if bucket <= MOST_FEW:
        yield heuristics.few(spec, bucket, limits)
    if bucket * spec.top_k > SORTED_FROM:
        for rows in rows_options(spec, bucket):
            yield heuristics.sorted_by_expert(spec, rows, limits)


SORTED_FROM = 64
"""Pairs of a call, more of which may be worth sorting."""


def _options(spec: ExpertsSpec, plan: Plan, product: str) -> Sequence[Tile]:
    """The likeliest first."""
    if isinstance(plan, Few):
        return FEW_TILES
    tiles = for_rows(SORTED_TILES, plan.rows)
    if product == "gate_up":
        return tiles
    across = for_rows(ACROSS_TILES, plan.rows) if spec.intermediate <= heuristics.NARROW else ()
    return [
        *(heuristics.across_tile(spec, tile, wider) for tile, wider in across),
        *(dataclasses.replace(tile, columns=2 * tile.columns) for tile in tiles),
    ]


def everything(spec: ExpertsSpec, buckets: Sequence[int] = BUCKETS) -> Iterator[tuple[int, Plan]]:
    """Each bucket with each plan that `search` may time in it: what is to be compiled."""
    for bucket in buckets:
        for product in ("gate_up", "down"):
            for plan in candidates(spec, bucket, product):
                yield bucket, plan
                if isinstance(plan, Few) and product == "down":
                    yield from ((bucket, other) for other in variants(spec, plan))


def search(spec: ExpertsSpec, bucket: int, timer: Timer) -> tuple[Plan, float]:
    """The fastest plan, and its time in microseconds.

    The products are timed one after the other: a kind's and a number of rows' best tile of the
    first does not depend on the second's. Then, for few tokens, the rest of a plan.
    """
    best: tuple[Plan, float] | None = None
    first, second = (candidates(spec, bucket, product) for product in ("gate_up", "down"))
    for start in starts(spec, bucket):
        plan = start
        for product, options in (("gate_up", first), ("down", second)):
            mine = [it for it in options if _alike(it, start)]
            timed = [(timer(_with(plan, it, product)), at) for at, it in enumerate(mine)]
            least, at = min(timed, default=(math.inf, -1))
            if math.isfinite(least):
                plan = _with(plan, mine[at], product)
        for option in variants(spec, plan) if isinstance(plan, Few) else [plan]:
            time = timer(option)
            if best is None or time < best[1]:
                best = option, time
    if best is None:
        raise ValueError(f"bucket {bucket} has no plan to begin with")
    return best


def variants(spec: ExpertsSpec, plan: Few) -> list[Plan]:
    """The plan with each way to sum, and with weights asked for early or not."""
    lines = {0, heuristics.lines_for(spec) if Limits.of(spec).early else 0}
    return [
        dataclasses.replace(plan, merge=merge, lines=count)
        for merge in (True, False)
        for count in sorted(lines)
    ]


def _alike(plan: Plan, start: Plan) -> bool:
    if isinstance(plan, Sorted) and isinstance(start, Sorted):
        return plan.rows == start.rows
    return type(plan) is type(start)


def _with(plan: Plan, other: Plan, product: str) -> Plan:
    """The plan with another one's tile of a product."""
    values: dict[str, Any] = {product: getattr(other, product)}
    return dataclasses.replace(plan, **values)
