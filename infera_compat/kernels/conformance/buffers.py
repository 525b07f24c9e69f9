"""Tensors in memory that is watched: poisoned before a call, and compared byte by byte after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch

GUARD_ROWS = 2
"""Rows before and after a guarded tensor, in the same memory."""
GUARD_CHANNELS = 16
"""Elements after each row's last, where a tensor is strided: the next row stays aligned."""

OUTPUTS = ("out", "lse")
SCRATCH = ("workspace13", "workspace2", "workspace")


def tensors(call: Any) -> dict[str, torch.Tensor]:
    """The tensors of a call, by their field's name."""
    values = {field.name: getattr(call, field.name) for field in fields(call)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def outputs(call: Any) -> dict[str, torch.Tensor]:
    """What a call is to write."""
    return {name: value for name, value in tensors(call).items() if name in OUTPUTS}


def scratch(call: Any) -> dict[str, torch.Tensor]:
    """What a call may write."""
    return {name: value for name, value in tensors(call).items() if name in SCRATCH}


def inputs(call: Any) -> dict[str, torch.Tensor]:
    """What a call must leave as it is."""
    written = (*OUTPUTS, *SCRATCH)
    return {name: value for name, value in tensors(call).items() if name not in written}


def guarded(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, strided: bool = False
) -> torch.Tensor:
    """A tensor full of NaN with guard rows around it; `strided`: with gaps between its rows too."""
    gap = GUARD_CHANNELS if strided else 0
    row = math.prod(shape[1:])
    whole = torch.empty((shape[0] + 2 * GUARD_ROWS, row + gap), dtype=dtype, device=device)
    poison([whole])
    return whole[GUARD_ROWS : GUARD_ROWS + shape[0], :row].unflatten(1, shape[1:])


def scratch_bytes(count: int, device: torch.device) -> torch.Tensor:
    """Workspace of `count` bytes, with guard bytes before and after it; aligned to 256 bytes."""
    guard = 256
    whole = torch.full((count + 2 * guard,), 0xFF, dtype=torch.uint8, device=device)
    return whole[guard : guard + count]


def counters(count: int, device: torch.device) -> torch.Tensor:
    """`count` counters, int32 and zero, with guard bytes before and after them."""
    numbers = scratch_bytes(4 * count, device).view(torch.int32)
    return numbers.zero_()


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes that a tensor is a view of, its guards and gaps too: [bytes], uint8, not a copy."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def poison(these: Iterable[torch.Tensor]) -> None:
    """Fill the whole memory of some tensors with bytes that are a NaN in every float type."""
    for tensor in these:
        memory(tensor).fill_(0xFF)


def copies(these: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The bytes of each tensor's memory, copied."""
    return {name: memory(tensor).clone() for name, tensor in these.items()}


def changed(these: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> list[str]:
    """Which of the tensors have other bytes than before."""
    return [name for name, it in these.items() if not torch.equal(memory(it), before[name])]


def spilled(written: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> list[str]:
    """Around which of the tensors bytes were changed: in guards, or in gaps between rows.

    Tensors may share memory: what belongs to any of them is theirs.
    """
    found = []
    for name, tensor in written.items():
        now = memory(tensor)
        differs = now != before[name]
        for other in written.values():
            if memory(other).data_ptr() == now.data_ptr():
                _elements(differs, other).fill_(False)
        if bool(differs.any()):
            found.append(name)
    return found


def _elements(of: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The entries of `of` ([bytes of the memory]) that stand for the elements of a tensor."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    return of.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)
