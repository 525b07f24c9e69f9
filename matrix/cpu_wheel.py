#!/usr/bin/env python3
"""Install one release of vLLM for a CPU into the Python that runs this, without dependencies.

    python matrix/cpu_wheel.py 0.32.0       (or the tox environment's name, vllm0.32.0)

matrix/releases.toml says from where. Most releases have a third party's CPU build whose Python is
stock's (`cpu`). Where there is none, a wheel is put together here, once, and kept in .cache/wheels:
all Python and data of the stock wheel (`python`), untouched, without its compiled CUDA code, and
the compiled CPU operators of another release's CPU build (`operators`). Its version has "+cpu"
added, in the metadata alone: by that word vLLM knows a build for CPUs. Setting
VLLM_TARGET_DEVICE=cpu instead would make it skip the platforms of plugins. Such a mix tests the
Python of its release, seams included; it proves nothing about that release's operators.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import tomllib

ROOT = Path(__file__).parents[1]
RELEASES = ROOT / "matrix/releases.toml"
WHEELS = ROOT / ".cache/wheels"

COMPILED = re.compile(r"\.so(\.\d+)*$")
OPERATORS = "vllm/_C*.abi3.so"
"""The compiled operators of a CPU build: one file for each instruction set."""

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every member, so that the same two wheels give the same file."""


def requirement(line: dict[str, str]) -> str:
    """What pip is to install for a line of the list: a requirement, or the path of a wheel."""
    if "cpu" in line:
        return line["cpu"]
    name, version = line["python"].split("==")
    WHEELS.mkdir(parents=True, exist_ok=True)
    operators = line["operators"].replace("==", "-")
    made = WHEELS / operators / f"{name}-{version}+cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
            stock = download(line["python"], Path(folder, "python"))
            build = download(line["operators"], Path(folder, "operators"))
            partial = Path(folder, made.name)
            mix(stock, build, partial)
            made.parent.mkdir(exist_ok=True)
            partial.replace(made)
    return str(made)


def download(pinned: str, folder: Path) -> Path:
    """The wheel of a pinned requirement, freshly downloaded into `folder`; no copy is cached."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
    subprocess.run([*command, "--only-binary=:all:", f"--dest={folder}", pinned], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def mix(stock: Path, build: Path, out: Path) -> None:
    """Write `stock`'s Python with `build`'s operators to the wheel `out`, version and all.

    Raises:
        ValueError: `build` holds no operators, or `stock` has no metadata to rename.
    """
    name, version = out.name.split("-")[:2]
    before, after = (f"{name}-{text}.dist-info/" for text in (version.partition("+")[0], version))
    record: list[str] = []
    with ZipFile(out, "w", ZIP_DEFLATED) as target, ZipFile(stock) as python:
        for member, content in members(python):
            if COMPILED.search(member) or member == f"{before}RECORD":
                continue
            if member == f"{before}METADATA":
                content = versioned(content, version)
            add(target, member.replace(before, after, 1), content, record)
        if not any(line.startswith(f"{after}METADATA,") for line in record):
            raise ValueError(f"{stock.name} has no {before}METADATA: is it {name} {version}?")
        with ZipFile(build) as compiled:
            found = list(members(compiled, OPERATORS))
        if not found:
            raise ValueError(f"{build.name} holds no {OPERATORS}: it is no build for a CPU")
        for member, content in found:
            add(target, member, content, record)
        text = "".join([*record, f"{after}RECORD,,\n"])
        target.writestr(ZipInfo(f"{after}RECORD", EPOCH), text, ZIP_DEFLATED)


def members(wheel: ZipFile, pattern: str = "*") -> Iterator[tuple[str, bytes]]:
    """The files of a wheel whose names fit, with their contents."""
    for name in wheel.namelist():
        if not name.endswith("/") and fnmatch.fnmatchcase(name, pattern):
            yield name, wheel.read(name)


def versioned(metadata: bytes, version: str) -> bytes:
    """METADATA with another version."""
    return re.sub(rb"(?m)^Version: .*$", b"Version: " + version.encode(), metadata, count=1)


def add(wheel: ZipFile, name: str, content: bytes, record: list[str]) -> None:
    """Add a file to a wheel, and its line to the wheel's RECORD."""
    wheel.writestr(ZipInfo(name, EPOCH), content, ZIP_DEFLATED)
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    record.append(f"{quoted},sha256={digest},{len(content)}\n")


def main() -> None:
    """Install the release that the command line names."""
    releases = tomllib.loads(RELEASES.read_text("utf-8"))["release"]
    parser = argparse.ArgumentParser(prog="python matrix/cpu_wheel.py")
    parser.add_argument("release", type=lambda name: name.removeprefix("vllm"), choices=releases)
    what = requirement(releases[parser.parse_args().release])
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, what]
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
