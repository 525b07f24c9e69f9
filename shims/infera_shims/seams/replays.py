"""Counting what a CUDA graph replays: Python runs at its capture, never at a replay."""

from __future__ import annotations

from typing import Any

import torch

MOST_LAYERS = 4096


class Replays:
    """One counter a layer in GPU memory, raised by a node in every graph that holds the layer.

    Costs one small launch a layer and replay (about 1 µs), so it is used only where INFERA_REPORT
    asks for the figures.
    """

    def __init__(self, device: Any) -> None:
        """Reserve the counters (int64, 32 KiB) before vLLM measures its memory."""
        self._counters = torch.zeros(MOST_LAYERS, dtype=torch.int64, device=device)
        self._slots: dict[tuple[str, str], int] = {}

    def captured(self, key: tuple[str, str]) -> None:
        """The layer `key` (op, name) is being recorded: record its counter's step beside it."""
        slot = self._slots.setdefault(key, len(self._slots) % MOST_LAYERS)
        self._counters[slot : slot + 1].add_(1)

    def reset(self) -> None:
        """Forget the replays of vLLM's warm-up: called when the first step is about to serve."""
        self._counters.zero_()

    def read(self) -> dict[tuple[str, str], int]:
        """The replays so far; waits for the GPU."""
        counts = self._counters.tolist()
        return {key: counts[slot] for key, slot in self._slots.items()}
