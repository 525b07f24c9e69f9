"""All that a plan is made of, gathered once."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.kernels.kernel import CONTRACT, Kernel
from infera_compat.matrix import support
from infera_compat.matrix.checkout import Checkout
from infera_compat.plan import author, benches, caches, engines, points, probing, proofs


@dataclass(frozen=True)
class Identity:
    """Which kernel this is.

    summary: the first paragraph of its module's docstring. distribution: the package that it comes
    from. captures: whether it may be recorded into a CUDA graph. own_contract: the version that it
    speaks; contract: the one that this infera-compat does.
    """

    name: str
    op: str
    summary: str
    distribution: str
    captures: bool
    own_contract: int
    contract: int = CONTRACT


@dataclass(frozen=True)
class Facts:
    """What is known of a kernel. releases: the supported ones, newest first."""

    identity: Identity
    releases: tuple[str, ...]
    support: probing.Support
    points: tuple[points.Point, ...]
    layouts: tuple[caches.Layout, ...]
    proofs: proofs.Proofs
    engines: tuple[engines.Ran, ...]
    benches: benches.Benches
    author: author.Author


def gather(
    checkout: Checkout,
    kernel: Kernel[Any, Any, Any],
    distribution: str,
    dtype: probing.Dtype,
    prose: Path,
) -> Facts:
    """The facts of a kernel, from what it says itself and from a checkout's records.

    distribution: what it comes from. dtype: makes a named element type. prose: the author's TOML
    file, which need not be there. Raises CompatError for a file that is damaged or means nothing.
    """
    found = support.known(checkout)
    releases = tuple(release.line.release for release in found)
    name, op = kernel.name, kernel.op
    return Facts(
        identity=Identity(
            name, op, _summary(kernel), distribution, kernel.captures, kernel.contract
        ),
        releases=releases,
        support=probing.ask(kernel, dtype),
        points=points.points(op, found),
        layouts=caches.layouts(op, found),
        proofs=proofs.read(checkout, name, op),
        engines=engines.read(checkout, name),
        benches=benches.read(checkout, name, op, releases),
        author=author.read(prose),
    )


def _summary(kernel: Kernel[Any, Any, Any]) -> str:
    """The first paragraph of the docstring of a kernel's module, in one line."""
    told = inspect.getdoc(sys.modules[type(kernel).__module__]) or ""
    return " ".join(told.partition("\n\n")[0].split())
