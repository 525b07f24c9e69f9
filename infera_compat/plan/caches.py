"""The KV caches that a kernel can read: by backend, how K and V lie in each release."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from packaging.version import Version

from infera_compat.kernels import kernel as kernels
from infera_compat.matrix import gpu
from infera_compat.matrix.support import Release
from infera_shims.adapters import metadata
from infera_shims.seams.kv_views import regimes

OWN = ("CPU_ATTN",)
"""Packed by stock, and written by the adapter where a kernel takes the layer
(infera_shims/adapters/attention.py)."""

NO_CACHE = "the op reads no KV cache"
PROVED = "proved"
DO = "`python matrix/kv_views_gpu.py`, then `infera-compat matrix support FILE`"
"""What would probe the views of a cache."""


@dataclass(frozen=True)
class Layout:
    """How a backend's cache lies in a run of releases.

    regime: as `impl.forward` sees it; None where stock packs it. why_not: why no kernel is bound
    over it; None where one is. own: whether a kernel's layers write the cache themselves there.
    probed: by release, what the probe said of it on a GPU; a release that is missing has no record.
    """

    backend: str
    first: str
    last: str
    regime: str | None
    why_not: str | None
    own: bool
    probed: Mapping[str, str]

    @property
    def releases(self) -> str:
        """The run of releases, both ends included."""
        return self.first if self.first == self.last else f"{self.first} – {self.last}"


def layouts(op: str, found: Sequence[Release]) -> tuple[Layout, ...]:
    """The layouts of the backends of a kernel's op, oldest release first; none for experts."""
    if op == kernels.EXPERTS:
        return ()
    latent = op == kernels.MLA_DECODE
    backends = dict.fromkeys(
        entry.backend for entry in regimes.EXPECTED if (entry.backend in regimes.MLA) == latent
    )
    oldest_first = sorted(found, key=lambda release: Version(release.line.release))
    return tuple(layout for backend in backends for layout in _runs(backend, oldest_first))


def _runs(backend: str, found: Sequence[Release]) -> Iterable[Layout]:
    """Neighbouring releases in which a backend's cache lies in one way."""

    def lies(release: Release) -> tuple[bool, regimes.Regime | None, str | None]:
        minor = _minor(release.line.release)
        entry = regimes.expected(backend, minor)
        regime = None if entry is None else entry.regime
        return entry is not None, regime, _why_not(backend, regime, minor)

    for (known, regime, why_not), run in groupby(found, key=lies):
        if not known:
            continue  # the release has no such backend
        releases = list(run)
        yield Layout(
            backend,
            releases[0].line.release,
            releases[-1].line.release,
            None if regime is None else regime.name,
            why_not,
            why_not is None and backend in OWN,
            {
                release.line.release: probed
                for release in releases
                if (probed := _probed(release.body, backend)) is not None
            },
        )


def _why_not(backend: str, regime: regimes.Regime | None, minor: regimes.Minor) -> str | None:
    """Why no kernel is bound over a backend in a minor release."""
    if backend in regimes.MLA:
        return None
    if regime is None and backend not in OWN:
        return regimes.PACKED[backend]
    if backend not in metadata.KNOWN:
        return "its metadata is not read (infera_shims/adapters/metadata.py)"
    first = metadata.KNOWN[backend].first
    return None if minor >= _minor(first) else f"its metadata is read from {first} on"


def _probed(body: Mapping[str, Any] | None, backend: str) -> str | None:
    """What the probe on a GPU said of a backend: "proved", or the first thing that it was not."""
    if body is None or gpu.KV_VIEWS not in body:
        return None
    rows = [row for row in body[gpu.KV_VIEWS]["rows"] if row["backend"] == backend]
    if not rows:
        return None
    bad = next((row for row in rows if row["status"] != PROVED), None)
    if bad is None:
        return PROVED
    why = str(bad.get("reason", "no reason given")).partition(" (")[
        0
    ]  # where in a file is left out
    return f"{bad['status']}: {why}"


def _minor(release: str) -> regimes.Minor:
    version = Version(release)
    return version.major, version.minor
