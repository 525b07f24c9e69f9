"""The stock wheel of a release, fetched by pip: its Python is kept, the rest thrown away."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.utils import canonicalize_version
from packaging.version import Version
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from infera_compat.errors import CompatError

# Any Linux wheel will do, whatever machine this is: only its Python is read.
PLATFORMS = (
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 43)),
)
PYTHON = "3.12"
NETWORK = ("--retries=1", "--timeout=15")
OPTIONS = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-deps")

_PUBLISHED = re.compile(r"\(from versions: (\d.*)\)")
_SIZE = re.compile(r"Downloading .*\((\d+(?:\.\d+)?) ([kMG]?B)\)")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
LOOK_S = 0.2

COMPLETE = "complete"
"""The file that is written last beside a fetched package: without it, what is there is not used."""


class Unpublished(Exception):
    """A release that the index does not have; `published` are those it has."""

    def __init__(self, published: Iterable[Version]) -> None:
        """Keep them, oldest first."""
        super().__init__()
        self.published = tuple(sorted(published))


def cache() -> Path:
    """Where the Python of fetched releases is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "infera-compat" / "releases"


def fetch(distribution: str, version: Version, console: Console) -> Path:
    """The package folder of a release, from the cache or from the index.

    Raises:
        Unpublished: the index answers, and has no such release.
        CompatError: there is no pip, or it could not fetch, or what it fetched could not be kept.
    """
    # 0.33 and 0.33.0 are one release.
    kept = cache() / f"{distribution}-{canonicalize_version(version)}"
    if not (kept / COMPLETE).is_file():
        try:
            _keep(f"{distribution}=={version}", kept, console)
        except OSError as error:
            raise CompatError(
                f"{kept.parent} can't be written",
                found=str(error),
                expected="a folder for the Python of fetched releases",
                do="Mend XDG_CACHE_HOME, or give --wheel or --root.",
            ) from error
    return kept / "vllm"


def _keep(pinned: str, kept: Path, console: Console) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetching-") as folder:
        wheel = _download(pinned, Path(folder), console)
        unpacked = Path(folder, "unpacked")
        unpack(wheel, unpacked)
        (unpacked / COMPLETE).touch()
        shutil.rmtree(kept, ignore_errors=True)
        unpacked.replace(kept)


def unpack(wheel: Path, folder: Path) -> Path:
    """Put a wheel's Python and metadata below `folder`; the package's folder there."""
    try:
        with ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if _is_wanted(name)])
    except (OSError, BadZipFile) as error:
        raise CompatError(
            f"{wheel} can't be read",
            found=str(error),
            expected="a wheel of vLLM",
            do="Give another --wheel.",
        ) from error
    if not (folder / "vllm" / "__init__.py").is_file():
        raise CompatError(
            f"{wheel} is no wheel of vLLM",
            found="no vllm/__init__.py in it",
            expected="the package vllm",
            do="Give another --wheel.",
        )
    return folder / "vllm"


def _is_wanted(name: str) -> bool:
    return (name.startswith("vllm/") and name.endswith(".py")) or name.endswith("-info/METADATA")


def _download(pinned: str, folder: Path, console: Console) -> Path:
    """Let pip download the wheel below `folder`, with a bar while it does."""
    target, scratch = folder / "wheel", folder / "scratch"
    scratch.mkdir()
    command = [*_pip(), "download", *OPTIONS, *NETWORK, "--progress-bar=off"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    command += [f"--platform={platform}" for platform in PLATFORMS]
    lines: list[str] = []
    process = subprocess.Popen(
        [*command, f"--dest={target}", pinned],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # pip writes below TMPDIR first: there its progress can be seen, whatever its version.
        env={**os.environ, "TMPDIR": str(scratch), "PIP_NO_COLOR": "1"},
    )
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        _watch(process, pinned, folder, lines, console)
    finally:
        process.kill()
        process.wait()
        reader.join()
    if process.returncode == 0:
        return next(target.glob("*.whl"))
    raise _failure(pinned, lines)


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    if process.stdout is not None:
        lines += (line.strip() for line in process.stdout)


def _watch(
    process: subprocess.Popen[str],
    pinned: str,
    folder: Path,
    lines: Sequence[str],
    console: Console,
) -> None:
    """Wait for pip, and show how much it has downloaded."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    if not console.is_terminal:
        console.print(f"Fetching {pinned} …", highlight=False)
    with bar:
        task = bar.add_task(pinned, total=None)
        while process.poll() is None:
            bar.update(task, completed=_written(folder), total=_size(lines))
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue


def _size(lines: Sequence[str]) -> float | None:
    """The size of the wheel, once pip has told it."""
    found = next(filter(None, map(_SIZE.search, list(lines))), None)
    return float(found[1]) * _UNITS[found[2]] if found else None


def _written(folder: Path) -> int:
    """How much of the wheel is there; pip moves it, and removes folders, meanwhile."""
    largest = 0
    for parent, _, names in os.walk(folder):  # passes over what is gone, unlike rglob
        for name in names:
            if name.endswith(".whl"):
                with suppress(FileNotFoundError):
                    largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _pip() -> list[str]:
    """pip as a command: this Python's, or any, since nothing depends on whose it is."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise CompatError(
            "a release is fetched by pip, and there is none",
            found="no module pip, and no pip on PATH",
            expected="pip",
            do="Install pip (python -m ensurepip), or give --wheel or --root.",
        )
    return [found]


def _failure(pinned: str, lines: Sequence[str]) -> Exception:
    published = next(filter(None, map(_PUBLISHED.search, lines)), None)
    if published:
        return Unpublished(map(Version, published[1].split(", ")))
    told = [line for line in lines if line.startswith(("ERROR:", "WARNING: Retrying"))] or lines
    return CompatError(
        f"{pinned} could not be fetched",
        found=told[0] if told else "pip said nothing",
        expected="an index that pip reaches (PyPI)",
        do="Mend the network or pip's settings, or give --wheel or --root.",
    )
