"""What a GPU can hold, as far as the choice of a tile depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

KIB = 1024
SHARED: Mapping[tuple[int, int], int] = {
    (8, 0): 163 * KIB,
    (8, 6): 99 * KIB,
    (8, 7): 163 * KIB,
    (8, 9): 99 * KIB,
    (9, 0): 227 * KIB,
    (10, 0): 227 * KIB,
    (10, 3): 227 * KIB,
    (12, 0): 99 * KIB,
    (12, 1): 99 * KIB,
}
"""Bytes of shared memory that a program can have, by compute capability (CUDA programming guide,
technical specifications of compute capabilities)."""
LEAST = 99 * KIB
"""Where the capability is not listed."""
AMD = 64 * KIB
"""Of LDS, on any GPU of AMD's (gfx950 has 160 KiB)."""
HOPPER = (9, 0)


class OnDevice(Protocol):
    """A spec of any op."""

    @property
    def capability(self) -> tuple[int, int] | None:
        """(major, minor) of an NVIDIA GPU, else None."""


@dataclass(frozen=True)
class Limits:
    """shared: bytes that a program may use. stages: num_stages at most. tma: whether there are
    tensor descriptors. early: whether a launch may begin before the one before has ended."""

    shared: int
    stages: int
    tma: bool
    early: bool

    @classmethod
    def of(cls, spec: OnDevice) -> Limits:
        """Of a layer's device; a capability of None is AMD's (or the interpreter's)."""
        if spec.capability is None:
            return cls(AMD, 2, False, False)
        shared = SHARED.get(spec.capability, LEAST)
        hopper = spec.capability >= HOPPER
        return cls(shared, 5, hopper, hopper)
