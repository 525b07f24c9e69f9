"""How a layer is run for so many tokens: which way, and in which tiles."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BUCKETS = tuple(1 << power for power in range(15))
"""Tokens, at most, of the calls that a plan is for; the last one is for all larger calls too."""
MOST_FEW = 64
"""The largest bucket that may be run without sorting: each program looks at all tokens."""


@dataclass(frozen=True)
class Tile:
    """The tile of one matrix product, and how Triton compiles it.

    columns: of the result (of gate and of up, each). depth: channels at a time. warps, stages:
    Triton's num_warps and num_stages. group: row tiles that go through the columns together.
    per_sm: programs an SM, which take tiles as long as there are some; 0: a program a tile.
    across: column tiles that a program goes through with the same rows, whose channels it has all
    at once; of a sorted plan's second product alone. 0: one, channels in steps.
    """

    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
    per_sm: int = 0
    across: int = 0


@dataclass(frozen=True)
class Few:
    """Without sorting.

    merge: the last program of the second product sums; else another launch. lines: of each row of
    the second product's weights, that it asks for while the first one still runs.
    """

    gate_up: Tile
    down: Tile
    merge: bool
    lines: int = 0


@dataclass(frozen=True)
class Sorted:
    """Sorted by expert. rows: of a tile, in both products."""

    rows: int
    gate_up: Tile
    down: Tile


Plan = Few | Sorted
KINDS: Mapping[str, type[Few] | type[Sorted]] = {"few": Few, "sorted": Sorted}


def bucket(tokens: int) -> int:
    """The bucket of a call."""
    return BUCKETS[min(bisect_left(BUCKETS, tokens), len(BUCKETS) - 1)]


def buckets(tokens: int) -> tuple[int, ...]:
    """The buckets of all calls of at most so many tokens."""
    return BUCKETS[: BUCKETS.index(bucket(tokens)) + 1]


def encode(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it."""
    kind = next(name for name, its in KINDS.items() if isinstance(plan, its))
    return {"kind": kind, **dataclasses.asdict(plan)}


def decode(body: Any) -> Plan:
    """The plan that `encode` wrote; raises ValueError for what is none."""
    try:
        values: dict[str, Any] = dict(body)
        made = KINDS[values.pop("kind")]
        tiles: dict[str, Any] = {name: Tile(**values.pop(name)) for name in ("gate_up", "down")}
        plan = made(**values, **tiles)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{body!r} is no plan: {type(error).__name__}: {error}") from error
    numbers = [number for tile in tiles.values() for number in vars(tile).values()]
    numbers.append(plan.rows if isinstance(plan, Sorted) else plan.lines)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{body!r} has something that is no number of tiles")
    if tiles["gate_up"].across or (isinstance(plan, Few) and plan.down.across):
        raise ValueError(f"{body!r} goes across columns where no product can")
    return plan
