"""The way from the core to the code that knows vLLM, and which of its shims a release gets."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infera_compat.release import Release

if TYPE_CHECKING:
    from infera_compat.contracts import Verdict
    from infera_shims.shim import Shim


def loaded() -> Any:
    """The package infera_shims. Only here does the core reach it: by name, and late."""
    return importlib.import_module("infera_shims")


def pick(
    release: Release, recorded: Mapping[str, Mapping[str, list[str]]] | None = None
) -> tuple[Shim, Verdict]:
    """The shim whose contracts all hold; of several, the one that asks for most.

    The version only says which is tried first, and which of two that ask for as much. Where none
    holds whole: the one of which least moved. recorded: the files of recorded releases by shim,
    which are not read again; by default those of this wheel.
    """
    # Here: a process that builds no model, of which vLLM has several, needs no contracts.
    from infera_compat.contracts import judge
    from infera_compat.definitions import Source

    shims = loaded()
    known = shims.recorded() if recorded is None else recorded
    source = Source(release.root)
    tried = []
    order = shims.order(release.version)
    most = max(len(shim.needs) for shim in order)
    for shim in order:
        verdict = judge(source, shim.needs, known.get(shim.name, {}))
        if verdict.known or (not verdict.moved and verdict.of == most):
            return shim, verdict
        tried.append((shim, verdict))
    whole = [pair for pair in tried if not pair[1].moved]
    if whole:
        return max(whole, key=lambda pair: pair[1].of)
    return min(tried, key=lambda pair: len(pair[1].moved))
