"""Where things lie in a checkout of the project."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from infera_compat.errors import CompatError

SOURCES = ("infera_compat", "shims")


@dataclass(frozen=True)
class Checkout:
    """A checkout, by its root."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> Checkout:
        """The checkout at `root`; raises CompatError where there is none."""
        found = cls(root.absolute())
        if not found.releases.is_file():
            raise CompatError(
                f"{found.root} is no checkout of infera-compat",
                found="no matrix/releases.toml",
                expected="the project's root",
                do="Run this there, or give --checkout.",
            )
        return found

    @property
    def releases(self) -> Path:
        """The list of releases."""
        return self.root / "matrix/releases.toml"

    @property
    def results(self) -> Path:
        """What was measured: <release>.json."""
        return self.root / "matrix/results"

    @property
    def contracts(self) -> Path:
        """What each release offers: <release>.json."""
        return self.root / "matrix/contracts"

    @property
    def cache(self) -> Path:
        """What a run keeps for the next one; not in git."""
        return self.root / ".cache/matrix"

    def commit(self) -> str | None:
        """The commit that is checked out, short; None where git does not know."""
        return self._git("rev-parse", "--short", "HEAD")

    def dirty(self) -> bool:
        """Whether the plugin's sources differ from that commit's, or git does not know."""
        return self._git("status", "--porcelain", "--", *SOURCES) != ""

    def _git(self, *arguments: str) -> str | None:
        command = ["git", "-C", str(self.root), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None
