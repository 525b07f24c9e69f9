"""Distributions with kernels, as folders on the path: an installed one's metadata and module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

GROUP = "infera_compat.kernels"
KERNEL = """
from infera_compat.kernels.{op}.contract import {base}


class A({base}):
    name = "{name}"

    def supports(self, spec):
        return None

    def run(self, call):
        raise AssertionError("only looked at")


KERNEL = A()
"""
BASES = {
    "attention": "AttentionKernel",
    "mla_decode": "MlaDecodeKernel",
    "experts": "ExpertsKernel",
}


def kernel(name: str, op: str = "attention") -> str:
    """A module's source whose KERNEL is right."""
    return KERNEL.format(name=name, op=op, base=BASES[op])


@dataclass(frozen=True)
class Shelf:
    """A folder on sys.path that distributions are put into."""

    site: Path

    def put(self, distribution: str, text: str, source: str | None, version: str = "1.0") -> None:
        """Install a distribution: entry points as they are written, and its module if it has one.

        The module is called as the distribution is, with underscores.
        """
        name = distribution.replace("-", "_")
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", "utf-8"
        )
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{dedent(text)}\n", "utf-8")
        if source is not None:
            (self.site / f"{name}.py").write_text(source, "utf-8")

    def put_kernel(self, name: str, source: str | None = None, attribute: str = "KERNEL") -> str:
        """Install a kernel's own distribution; its source is right unless another is given."""
        distribution = f"dist-of-{name.replace('_', '-')}"
        module = distribution.replace("-", "_")
        self.put(
            distribution,
            f"{name} = {module}:{attribute}",
            kernel(name) if source is None else source,
        )
        return distribution


@contextmanager
def shelf(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A shelf before all else on the path, with an infera-compat that has no kernels.

    What is imported from it is forgotten again.
    """
    folder.mkdir()
    patch.syspath_prepend(folder)
    made = Shelf(folder)
    made.put("infera-compat", "", None)
    before = set(sys.modules)
    yield made
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        # What was not there before need be no module: a None keeps one from being imported.
        if module is not None and str(vars(module).get("__file__")).startswith(str(folder)):
            del sys.modules[name]
