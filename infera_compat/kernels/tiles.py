"""Cut groups of rows into tiles of one size, on the device: no length is read on the host."""

from __future__ import annotations

import torch

MOST_ROWS = 128


def tile_size(rows: int, groups: int) -> int:
    """Rows of a tile: a power of two near the mean of a group, at most MOST_ROWS.

    Each group wastes less than one tile, so that all together waste about as much as they hold.
    """
    return min(MOST_ROWS, 1 << max(0, (rows // max(1, groups)).bit_length() - 1))


def cut(
    starts: torch.Tensor, rows: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tiles of `size` rows that cover every group, none of them over a group's end.

    starts: [groups + 1], integers that never fall: where each group begins, and where the last one
        ends, at most `rows`. There is at least one group.
    Returns (group, offset, used), all on the device of `starts`:
        group: [tiles], int64: which group a tile is of; always a valid index.
        offset: [tiles, size], int64: rows from the beginning of the group.
        used: [tiles, size], bool: whether there is such a row. The number of tiles is what the
        worst split of `rows` needs, so some tiles have no row at all.
    """
    groups = starts.shape[0] - 1
    # A tile holds a row at least, and each group leaves at most one tile unfilled.
    tiles = min(rows, rows // size + groups)
    starts = starts.to(torch.int64)
    lengths = starts[1:] - starts[:-1]
    tiles_of = (lengths + (size - 1)) // size
    ends = torch.cumsum(tiles_of, 0)
    tile = torch.arange(tiles, device=starts.device)
    group = torch.searchsorted(ends, tile, right=True).clamp(max=groups - 1)
    first = (tile - (ends - tiles_of)[group]) * size
    offset = first[:, None] + torch.arange(size, device=starts.device)
    # Tiles after the last row fall into the last group, beyond its end.
    return group, offset, offset < lengths[group][:, None]
