"""Where things lie in a checkout of the project."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep another run out of what a run writes here, .tox too; CompatError where one is in.

        The lock is the kernel's: it goes with its process, however that ends.
        """
        file = self.cache / "lock"
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            lock = file.open("a+")
        except OSError as error:
            raise CompatError(
                f"{self.cache} can't be written",
                found=str(error),
                expected="a folder for what a run keeps",
                do="Make it writable.",
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                lock.seek(0)
                raise CompatError(
                    f"the matrix runs in {self.root} already",
                    found=f"process {lock.read().strip() or '(unknown)'}, which holds {file}",
                    expected="one run at a time in a checkout",
                    do="Wait for it or end it; or run in another checkout.",
                ) from error
            lock.truncate(0)
            print(os.getpid(), file=lock, flush=True)
            yield

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
