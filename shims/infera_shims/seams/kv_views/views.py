"""Strided views of a KV cache tensor in a regime. Tensor methods only: nothing is imported for it.

No view copies, touches the device or waits for it; strides come as the tensor's are, so padded
pages and every physical order (NHD, HND, layers inside blocks) look alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infera_compat.errors import Refused
from infera_shims.seams.kv_views.regimes import CANDIDATES, PACKED, PLAIN_DTYPES, Regime

SLOTS_FIRST = ("B", "N", "H", "D")
"""The axes of a view, in their order."""


@dataclass(frozen=True)
class Views:
    """What a kernel reads: a cache tensor's own memory.

    key, value: [blocks, block_size, kv_heads, head_size], the cache's element type; of an MLA
    cache key is [blocks, block_size, channels] and value None (V is a part of its channels).
    """

    key: Any
    value: Any | None

    @property
    def block_size(self) -> int:
        """The slots in a block of this tensor: what the block tables count in."""
        return int(self.key.shape[1])


def fits(shape: tuple[int, ...], regime: Regime, kv_heads: int, head_size: int) -> bool:
    """Whether a tensor of this shape can be in this regime; B and N may be anything."""
    fixed = {"2": 2, "H": kv_heads, "D": head_size, "2D": 2 * head_size, "C": head_size}
    return len(shape) == len(regime.seen) and all(
        size == fixed.get(axis, size) for size, axis in zip(shape, regime.seen, strict=True)
    )


def read(cache: Any, regime: Regime, kv_heads: int, head_size: int) -> Views:
    """The views of a cache tensor that is in `regime`.

    cache: as `impl.forward` is given it. kv_heads, head_size: the layer's (an MLA cache: 1, and
    all channels of a token).
    Raises Refused where its shape can't be in that regime, or its memory can't be viewed so.
    """
    if not fits(tuple(cache.shape), regime, kv_heads, head_size):
        raise Refused(f"a KV cache of {looks(cache)} is not {regime.name}")
    if regime.read_as is not None:
        sizes = dict(zip(regime.seen, cache.shape, strict=True)) | {"2": 2, "D": head_size}
        try:
            cache = cache.view([sizes[axis] for axis in regime.read_as])
        except RuntimeError as error:
            raise Refused(f"a KV cache of {looks(cache)} is not {regime.name}: {error}") from error
    axes = list(regime.axes)
    if "C" in axes:
        return Views(cache, None)
    if "2D" in axes:
        at = axes.index("2D")
        axes[at] = "D"
        parts = (cache.narrow(at, 0, head_size), cache.narrow(at, head_size, head_size))
    else:
        at = axes.index("2")
        del axes[at]
        parts = (cache.select(at, 0), cache.select(at, 1))
    order = [axes.index(axis) for axis in SLOTS_FIRST]
    return Views(parts[0].permute(order), parts[1].permute(order))


def views(cache: Any, backend: str, head_size: int, kv_heads: int) -> Views:
    """The views of a backend's cache tensor, where its shape alone says what it is.

    backend: as regimes.name_of names it. For a kernel that serves, prefer `read` with the regime
    that a probe found: a shape says nothing of the contents.
    Raises Refused: an unknown backend, packed or quantised contents, no regime that fits, several.
    """
    regimes = [
        regime
        for regime in readable(cache, backend)
        if fits(tuple(cache.shape), regime, kv_heads, head_size)
    ]
    if len(regimes) != 1:
        raise Refused(
            f"{backend}: found a KV cache of {looks(cache)}; expected, with {kv_heads} KV heads "
            f"of size {head_size}, {_one_of(CANDIDATES[backend])}"
            + (f"; this is {len(regimes)} of them" if regimes else "")
        )
    return read(cache, regimes[0], kv_heads, head_size)


def readable(cache: Any, backend: str) -> tuple[Regime, ...]:
    """The regimes in which this backend's cache may be; Refused where none can be read."""
    if backend not in CANDIDATES:
        raise Refused(
            f"{backend}: no KV layout of this backend is known here; found {looks(cache)}, "
            f"expected one of {', '.join(sorted(CANDIDATES))}"
        )
    if backend in PACKED:
        raise Refused(f"{backend}: {PACKED[backend]}; found {looks(cache)}, expected plain K and V")
    if str(cache.dtype) not in PLAIN_DTYPES:
        raise Refused(
            f"{backend}: the KV cache is quantised; found {looks(cache)}, expected elements of "
            f"{' or '.join(PLAIN_DTYPES)}"
        )
    return CANDIDATES[backend]


def alike(real: Any, probed: Any, regime: Regime) -> None:
    """Refuse a real cache whose regime can't be concluded from the probed one's.

    Both are as `impl.forward` is given them. They may differ in the number of blocks and in how
    far apart things lie (padding, more layers), not in another size, the order of the axes in
    memory, or the element type.
    """
    at = regime.seen.index("B")
    same = (
        real.dtype == probed.dtype
        and len(real.shape) == len(probed.shape)
        and all(
            a == b for i, (a, b) in enumerate(zip(real.shape, probed.shape, strict=True)) if i != at
        )
        and _order(real, probed) == _order(probed, real)
        and not overlaps(real)
    )
    if not same:
        raise Refused(
            f"the KV cache is not like the one that was probed; found {looks(real)}, expected "
            f"{looks(probed)} with more blocks"
        )


def overlaps(cache: Any) -> bool:
    """Whether two elements of a tensor may share memory: expanded, or axes that reach into others.

    Each axis, from the innermost, must step over all that lies inside it.
    """
    inner = 1
    sizes = ((int(step), size) for step, size in zip(cache.stride(), cache.shape, strict=True))
    for step, size in sorted(pair for pair in sizes if pair[1] > 1):
        if step < inner:
            return True
        inner = step * (size - 1) + inner
    return False


def _order(cache: Any, other: Any) -> list[int]:
    """The axes from the outermost in memory to the innermost.

    An axis of one element, here or in the other tensor, is nowhere.
    """
    both = zip(cache.shape, other.shape, strict=True)
    axes = [axis for axis, sizes in enumerate(both) if min(sizes) > 1]
    return sorted(axes, key=lambda axis: -int(cache.stride()[axis]))


def looks(cache: Any) -> str:
    """A tensor in words: shape, strides, element type."""
    return f"shape {tuple(cache.shape)}, strides {tuple(cache.stride())}, {cache.dtype}"


def _one_of(regimes: tuple[Regime, ...]) -> str:
    return "one of " + ", ".join(regime.name for regime in regimes)
