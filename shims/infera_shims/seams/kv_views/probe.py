"""Which regime really holds: stock writes marked tokens, and a regime must explain every byte.

Each (slot, head, channel) gets a mark of its own, K's apart from V's; a mark is a number in base
512, one digit a round, so that bfloat16 holds it exactly. The tokens go to slots all over the
cache. A regime fits if, round for round, marks put through its views into a cache full of one other
value give, element for element, what stock's update left in the whole storage: so all that was
written is where the views say, and no other slot, no gap and no neighbouring layer was touched.

The probe waits for the device: it belongs where a model is built, never into a step.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

from infera_compat.errors import Refused
from infera_shims.seams.kv_views import views
from infera_shims.seams.kv_views.regimes import CANDIDATES, PACKED, Regime
from infera_shims.seams.kv_views.tensors import Sizes
from infera_shims.seams.kv_views.update import Write

BASE = 512
UNTOUCHED = 384.0
"""Fills the cache before a round: exact in bfloat16, and no mark (they run from -256 to 255)."""
TOKENS = 7


class UpdateFailed(Refused):
    """Stock's own update does not run on a tensor: nothing was learned of its layout."""


@dataclass(frozen=True)
class Finding:
    """What a probe saw.

    fits: the regimes that explain every element. misses: for each other candidate, why it does
    not. looks: the tensor's shape, strides and element type. complete: whether what was written is
    the marks, each as often as it should be (then a miss is a matter of order: packed).
    """

    fits: tuple[Regime, ...]
    misses: dict[str, str]
    looks: str
    complete: bool


def probe(backend: str, cache: Any, sizes: Sizes, write: Write) -> Regime:
    """The regime that holds for a backend's cache.

    backend: as regimes.name_of names it. cache: a tensor of the probe's own (tensors.py), as
    `impl.forward` would be given it; its storage is overwritten. write: the stock update
    (update.writer).
    Raises Refused: unknown backend, packed or quantised contents, no regime fits, several do;
    UpdateFailed, a kind of it, where stock's update does not run here.
    """
    regimes = CANDIDATES.get(backend, ())
    if backend in PACKED and regimes:
        found = examine(regimes, cache, sizes, write)
        raise Refused(f"{backend}: {PACKED[backend]}; found {found.looks}; {describe(found)}")
    found = examine(views.readable(cache, backend), cache, sizes, write)
    if len(found.fits) != 1:
        raise Refused(
            f"{backend}: no one KV layout is certain; found {found.looks}; expected one of "
            f"{', '.join(regime.name for regime in regimes)}; {describe(found)}"
        )
    return found.fits[0]


def describe(found: Finding) -> str:
    """What the probe saw, in a clause."""
    fits = ", ".join(regime.name for regime in found.fits)
    misses = "; ".join(f"{name}: {why}" for name, why in found.misses.items())
    order = "every mark is in the cache" if found.complete else "marks are missing from the cache"
    return f"the probe: fits {fits or 'none'}, {order}" + (f" ({misses})" if misses else "")


def examine(regimes: tuple[Regime, ...], cache: Any, sizes: Sizes, write: Write) -> Finding:
    """Hold a cache against regimes, whatever is said of the backend by name.

    Raises UpdateFailed where the stock update does not run on this tensor.
    """
    torch = importlib.import_module("torch")
    storage = torch.empty(0, dtype=cache.dtype, device=cache.device).set_(cache.untyped_storage())
    wrong: dict[str, str] = {}
    complete = True
    block, slot = _places(torch, sizes, cache.device)
    for digit in range(_digits(sizes)):
        key, value = _marks(torch, cache, sizes, digit)
        storage.fill_(UNTOUCHED)
        try:
            write(cache, key, value, block * sizes.block_size + slot)
            written = storage.clone()
            written[:1].tolist()  # a kernel that fails on a GPU does so by now
        except Exception as error:
            raise UpdateFailed(
                f"the stock cache update failed on {views.looks(cache)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        complete = complete and _same_values(torch, written, key, value)
        for regime in regimes:
            if regime.name in wrong:
                continue
            storage.fill_(UNTOUCHED)
            try:
                found = views.read(cache, regime, sizes.kv_heads, sizes.head_size)
            except Refused:
                wrong[regime.name] = "another shape"
                continue
            found.key[block, slot] = key[:, 0] if sizes.mla else key
            if found.value is not None:
                found.value[block, slot] = value
            differ = int((storage != written).sum())
            if differ:
                wrong[regime.name] = f"{differ} elements differ"
    fits = tuple(regime for regime in regimes if regime.name not in wrong)
    return Finding(fits, wrong, views.looks(cache), complete)


def _places(torch: Any, sizes: Sizes, device: Any) -> tuple[Any, Any]:
    """Blocks and slots of the tokens, int64 [TOKENS]: scattered, the first and the last of all."""
    inner = sizes.blocks * sizes.block_size - 2
    step = next(s for s in range(5 * inner // 8, inner) if math.gcd(s, inner) == 1)
    scattered = [(i * step + 3) % inner + 1 for i in range(TOKENS - 2)]
    places = torch.tensor([0, *scattered, inner + 1], dtype=torch.int64, device=device)
    return places // sizes.block_size, places % sizes.block_size


def _elements(sizes: Sizes) -> int:
    """Marks that are needed: one an element of K and one of V."""
    return TOKENS * sizes.kv_heads * sizes.head_size * (1 if sizes.mla else 2)


def _digits(sizes: Sizes) -> int:
    digits = 1
    while BASE**digits < _elements(sizes):
        digits += 1
    return digits


def _marks(torch: Any, cache: Any, sizes: Sizes, digit: int) -> tuple[Any, Any]:
    """K and V [TOKENS, kv_heads, head_size] of one round; V None for MLA."""
    marks = torch.arange(_elements(sizes), dtype=torch.int64, device=cache.device)
    marks = marks // BASE**digit % BASE - BASE // 2
    shape = (TOKENS, sizes.kv_heads, sizes.head_size)
    marks = marks.to(cache.dtype)
    if sizes.mla:
        return marks.view(shape), None
    key, value = marks.view(2, *shape)
    return key.contiguous(), value.contiguous()


def _same_values(torch: Any, written: Any, key: Any, value: Any) -> bool:
    """Whether what was written is the marks, in whatever order."""
    marks = key.flatten() if value is None else torch.cat([key.flatten(), value.flatten()])
    found = written[written != UNTOUCHED]
    return found.shape == marks.shape and bool((found.sort()[0] == marks.sort()[0]).all())
