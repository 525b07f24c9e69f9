"""Queries that look for one key each, at a place where kernels go wrong.

Among thousands of keys drawn at random one that is missed, or seen and should not be, changes
nothing that a tolerance shows. Each head of a request is therefore given a key to look for: its
queries lean towards it so much that about as much weight lies on it as on all others together.
"""

from __future__ import annotations

import math

import torch

LOUDNESS = 120.0
"""What loud keys add to every score: more than exp can bear in float32 without the maximum."""
LOUD_DTYPES = (torch.float16, torch.bfloat16)
"""Not float32, which a GPU may round to TF32: of large keys that leaves too little."""
STRENGTH = 1.5
"""By how much the score of the key exceeds what makes it equal to all others together."""
EDGES = (128, 256, 512, 1024)
"""Sizes of parts that kernels cut the keys into."""


def loud(channels: int) -> float:
    """What to add to each channel of queries and of keys, for scores larger by LOUDNESS.

    All scores of a query grow alike, so that nothing else changes, whatever is rounded on the way.
    """
    return math.sqrt(LOUDNESS / math.sqrt(channels))


def places(length: int, queries: int, block_size: int, window: int | None) -> list[int]:
    """Positions of keys that matter, of a request of `length` tokens, the last `queries` asking."""
    last = length - 1
    found = [0, last, last - 1, length - queries, length - queries - 1, length // 2]
    found += [last // block_size * block_size, last // block_size * block_size - 1]
    for edge in EDGES:
        found += [last // edge * edge, last // edge * edge - 1]
    if window is not None:  # the first key that the last query sees, and the one before
        found += [length - window, length - window - 1]
    return sorted({place for place in found if 0 <= place < length})


def lean(
    query: torch.Tensor, keys: torch.Tensor, candidates: list[int], generator: torch.Generator
) -> None:
    """Make the queries of a request lean towards keys, in place.

    query: [tokens, heads, channels]. keys: [length, heads or 1, channels], the request's, by query
    head. candidates: what `places` found; heads take them in turn.
    """
    heads, channels = query.shape[1:]
    head = torch.arange(heads, device=query.device)
    first = torch.randint(len(candidates), (1,), generator=generator, device=query.device)
    place = torch.tensor(candidates, device=query.device)[(first + head) % len(candidates)]
    wanted = keys[place, head if keys.shape[1] > 1 else 0].float()
    strength = (math.log(keys.shape[0]) + STRENGTH) / math.sqrt(channels)
    query.copy_((query.float() + strength * wanted).to(query.dtype))
