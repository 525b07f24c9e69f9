"""The plug-in point of an op in each release: which seam, and what is known of it there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import infera_shims
from infera_compat.kernels import kernel as kernels
from infera_compat.matrix import cells
from infera_compat.matrix.support import H200_EAGER, H200_GRAPHS, Column, Release
from infera_compat.matrix.ways import COMPILED, DENSE, EAGER, EXPERTS, LATENT, Model
from infera_compat.settings import SEAMS

BAD = (cells.FAILED, cells.REFUSED, cells.STOCK_DIFFERS, cells.NOT_RUN)
GPU_MODES = (H200_EAGER, H200_GRAPHS)
MODES: Mapping[str, str] = {
    "CPU eager": EAGER,
    "CPU compiled": COMPILED,
    "H200 eager": H200_EAGER,
    "H200 graphs": H200_GRAPHS,
}
"""By a column's title: the mode of the cells that it shows."""

DO = "`python matrix/seams_gpu.py`, then `infera-compat matrix support FILE`"
"""What would measure a seam on a GPU."""


@dataclass(frozen=True)
class Seam:
    """Where an op's kernels are bound.

    name: one of settings.SEAMS. symbol: how the upstream symbol ends at which they are. why: why
    this seam and no other. models: those of the matrix whose layers come by it.
    """

    name: str
    symbol: str
    why: str
    models: tuple[Model, ...]


POINTS: Mapping[str, Seam] = {
    kernels.ATTENTION: Seam(
        "get_attn_backend_cls",
        ":Platform.get_attn_backend_cls",
        "every release has it under one signature, vLLM itself asks it for the backend, and it "
        "returns a subclass of the stock backend: on a GPU the cache, its writes and the metadata "
        "stay stock's, and only `impl.forward` is ours. Layers that never ask it come by the "
        "layer seam",
        (*DENSE, EXPERTS),
    ),
    kernels.MLA_DECODE: Seam(
        "layer",
        ":MLAAttention.__init__",
        "`forward_mqa` of a layer's own impl is the one place where decoding in the latent space "
        "can be told from prefill, in every release; it is set on the instance, so that no class "
        "of vLLM changes",
        (LATENT,),
    ),
    kernels.EXPERTS: Seam(
        "modular_kernel",
        ":FusedMoEKernel.__init__",
        "the experts' `apply` is the narrowest place that has routed tokens, both weights and "
        "stock's workspaces; what is before it (routing, dispatch) and after it (the sum over "
        "ranks) stays stock's",
        (EXPERTS,),
    ),
}
"""By a kernel's op."""


@dataclass(frozen=True)
class Status:
    """What is known of a seam in a mode. reasons: why it is no better."""

    status: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """The plug-in point in one release.

    symbol: the upstream symbol, None where the release's shim has none of that name. symbols: how
    many the seam stands on there. modes: by MODES' titles. others: seams of the op that can be
    forced instead, and were equal to stock in some mode.
    """

    release: str
    shim: str
    symbol: str | None
    symbols: int
    modes: Mapping[str, Status]
    others: tuple[str, ...]

    @property
    def named(self) -> bool:
        """Whether the release has the seam, and nothing measured or missing speaks against it."""
        return self.symbol is not None and not self.against

    @property
    def against(self) -> tuple[str, ...]:
        """The modes in which it failed, was refused, or nothing is known."""
        return tuple(
            f"{title}: {known.status}" for title, known in self.modes.items() if known.status in BAD
        )

    def equal(self, modes: Iterable[str]) -> bool:
        """Whether it was run and equal to stock in one of these modes."""
        wanted = set(modes)
        return any(
            known.status == cells.EQUAL
            for title, known in self.modes.items()
            if MODES[title] in wanted
        )


def points(op: str, found: Iterable[Release]) -> tuple[Point, ...]:
    """The plug-in point of a kernel's op in each of these releases."""
    return tuple(_point(op, release) for release in found)


def _point(op: str, release: Release) -> Point:
    seam, vllm_op = POINTS[op], kernels.OPS[op]
    (shim,) = [known for known in infera_shims.order(None) if known.name == release.line.shim]
    needs = shim.group(vllm_op, seam.name)
    return Point(
        release=release.line.release,
        shim=release.line.shim,
        symbol=next((n.symbol for n in needs if n.symbol.endswith(seam.symbol)), None),
        symbols=len(needs),
        modes={
            title: _status(release, vllm_op, seam.name, Column(title, mode, seam.models))
            for title, mode in MODES.items()
        },
        others=tuple(
            other
            for other in SEAMS[vllm_op]
            if other != seam.name and _equal(release, vllm_op, other, seam.models)
        ),
    )


def _equal(release: Release, op: str, seam: str, models: tuple[Model, ...]) -> bool:
    """Whether a seam was equal to stock in some mode, and bad in none."""
    found = {
        _status(release, op, seam, Column(title, mode, models)).status
        for title, mode in MODES.items()
    }
    return cells.EQUAL in found and found.isdisjoint(BAD)


def _status(release: Release, op: str, seam: str, column: Column) -> Status:
    """The worst of what is known of a seam in a column, with its reasons."""
    found = release.at(op, seam, column)
    worst = min((cell.status for cell in found), key=cells.STATUSES.index)
    reasons = (cell.reason for cell in found if cell.status == worst and cell.reason)
    return Status(worst, tuple(dict.fromkeys(reasons)))
