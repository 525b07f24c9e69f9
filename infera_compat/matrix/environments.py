"""The releases' tox environments, all with the same wheel of this project in them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from infera_compat.errors import CompatError
from infera_compat.matrix.checkout import Checkout
from infera_compat.matrix.releases import Line
from infera_shims.engines import child

TOOLS = ("tox", "uv")
INSTALL_TIMEOUT_S = 1800.0
"""A first installation downloads up to 3 GB."""

IDLE = ("infera_compat/cli/", "infera_compat/matrix/")
"""Parts of the wheel that no process of vLLM loads."""

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Wheel:
    """This project's wheel.

    source: a hash of all in it that a process of vLLM may load. commit, dirty: what the checkout
    was at when it was built (checkout.py).
    """

    file: Path
    source: str
    commit: str | None
    dirty: bool


def build(checkout: Checkout, stop: threading.Event) -> Wheel:
    """Build the wheel once, so that every environment gets the same source whatever is edited.

    Raises CompatError where the tools are missing, ChildError where the build fails, Stopped where
    `stop` is set meanwhile.
    """
    missing = [tool for tool in TOOLS if importlib.util.find_spec(tool) is None]
    if missing:
        raise CompatError(
            "the matrix makes its environments by tox and uv",
            found=f"{', '.join(missing)} missing in {sys.prefix}",
            expected="both beside infera-compat",
            do="Run `make matrix`: it brings them.",
        )
    folder = checkout.cache / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = ["build", "--quiet", "--wheel", "--out-dir", str(folder), str(checkout.root)]
    child.spawn("uv", command, _environment(), stop=stop)
    (file,) = folder.glob("*.whl")
    return Wheel(file, _source(file), checkout.commit(), checkout.dirty())


def _source(wheel: Path) -> str:
    digest = hashlib.sha256()
    with ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.startswith(IDLE) and ".dist-info/" not in name:
                digest.update(f"{name}\0".encode() + archive.read(name))
    return digest.hexdigest()[:16]


class Environments:
    """Makes environments one at a time, however many releases run at once."""

    def __init__(self, checkout: Checkout, wheel: Wheel, stop: threading.Event) -> None:
        """Once `stop` is set, what is being made is ended."""
        self._checkout, self._wheel, self._stop = checkout, wheel, stop
        self._lock = threading.Lock()
        self._written: dict[str, str] = {}

    def make(self, line: Line, echo: Echo) -> str:
        """Make or refresh a release's environment, and return its Python's path.

        Raises:
            ChildError: tox failed; the message ends with its last lines.
            Stopped: the matrix was stopped.
        """
        root = self._checkout.root
        with self._lock:
            arguments = ["run", "-c", str(root), "-e", line.environment]
            # The environment alone: what the lane itself would run is left out.
            arguments += ["--override", "engines.commands="]
            arguments += ["--installpkg", str(self._wheel.file)]
            child.spawn(
                "tox",
                arguments,
                _environment(),
                echo=echo,
                timeout_s=INSTALL_TIMEOUT_S,
                stop=self._stop,
            )
        return str(root / ".tox" / line.environment / "bin/python")

    def models(self, python: str, kinds: tuple[str, ...], echo: Echo) -> dict[str, str]:
        """The folders of these kinds of model, written by the first release that wants them."""
        with self._lock:
            for kind in kinds:
                if kind in self._written:
                    continue
                folder = str(self._checkout.cache / "models" / kind)
                child.spawn(
                    "infera_shims.engines.weights",
                    [kind, folder],
                    child.environment(**ALONE),
                    echo=echo,
                    python=python,
                    stop=self._stop,
                )
                self._written[kind] = folder
            return dict(self._written)


ALONE = {"PYTHONSAFEPATH": "1"}
"""Keeps the current folder, which may be the checkout, out of sys.path: the wheel is what runs."""


def _environment() -> dict[str, str]:
    """For tox: the caller's, with the tools that lie beside this Python found first."""
    beside = str(Path(sys.executable).parent)
    inherited = {name: value for name, value in os.environ.items() if name not in child.DROPPED}
    return {**inherited, "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"}
