"""How many pieces the keys of a step are cut into, so that all of a GPU reads them."""

from __future__ import annotations

from dataclasses import dataclass

import triton

LOOKED_AT = (1, 16, 256)
"""Requests that a program looks at in one go, to find its own; larger batches take several."""
ADDED_ELEMENTS, ADDED_PIECES, FEWEST_PIECES = 8192, 64, 4
"""What a program reads at once of the pieces it adds up: 64 registers of each of 128 threads."""
ADDING = {"num_warps": 4, "num_stages": 1}
"""How Triton is to compile what adds up: all reads of a program are on their way at once."""


def power(number: int) -> int:
    """The power of two at or above a number."""
    return int(triton.next_power_of_2(number))


def looked_at(requests: int) -> int:
    """Which of LOOKED_AT a step of so many requests has."""
    return next((most for most in LOOKED_AT if requests <= most), LOOKED_AT[-1])


def looked_at_within(requests: int) -> tuple[int, ...]:
    """Which of them steps of up to so many requests have."""
    return LOOKED_AT[: LOOKED_AT.index(looked_at(requests)) + 1]


def numbers_of_requests(looked_at: int) -> tuple[int, ...]:
    """Of steps that a variant serves: the fewest, the most, and where there is no end, one more."""
    at = LOOKED_AT.index(looked_at)
    fewest = LOOKED_AT[at - 1] + 1 if at else 1
    last = looked_at == LOOKED_AT[-1]
    return tuple(dict.fromkeys((fewest, looked_at, *([looked_at + 1] if last else []))))


@dataclass(frozen=True)
class Pieces:
    """Of the steps of up to `looked_at` requests, one of LOOKED_AT. wanted: in all, about."""

    wanted: int
    looked_at: int

    @classmethod
    def of(cls, programs: int, tiles: int, looked_at: int) -> Pieces:
        """So many that there are `programs` programs, where each piece has one for each tile."""
        return cls(max(1, programs // tiles), looked_at)

    def alone(self, requests: int) -> bool:
        """Whether each of so many requests is one piece."""
        return requests >= self.wanted or requests > self.looked_at

    def in_all(self, requests: int) -> int:
        """Pieces of so many requests, at most: one more than wanted for each but the first."""
        return requests if self.alone(requests) else self.wanted + requests - 1

    @property
    def most(self) -> int:
        """Pieces of any step whose requests have several."""
        requests = min(self.wanted - 1, self.looked_at)
        return self.in_all(requests) if requests else 0

    def at_once(self, channels: int) -> int:
        """How many pieces of so many channels a program reads at once to add them up."""
        each = power(-(-self.wanted // numbers_of_requests(self.looked_at)[0]))
        return min(ADDED_ELEMENTS // channels, ADDED_PIECES, max(FEWEST_PIECES, each))
