"""What a kernel found out about this machine, kept between starts: tuned settings, as JSON.

Not compiled code: what Triton compiles, Triton keeps in its own cache (TRITON_CACHE_DIR, else
~/.triton/cache), and finds there again without us.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from infera_compat import report


class Store:
    """The folder of one kernel on one GPU, shared by all processes that serve there.

    Each key has a file of its own, which is replaced as a whole: several processes may read and
    write at once, and the last one's word stands. A file that can't be understood is removed.
    Nothing here fails a start: a folder that can't be used is told once, and nothing is kept.
    """

    def __init__(
        self,
        folder: Path | None,
        kernel: str,
        version: str,
        gpu: str,
        built_with: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is read or made yet.

        folder: Settings.cache_dir; None keeps nothing. kernel, version: the kernel's name, and the
        version of its distribution. gpu: the device's name. built_with: versions of what compiles
        it, {"torch": "2.9.1", "triton": "3.5.1"}. Settings are found again only where all of these
        are the same.
        """
        self.identity = {
            "kernel": kernel,
            "version": version,
            "gpu": gpu,
            "built_with": dict(sorted((built_with or {}).items())),
        }
        self._folder = None if folder is None else folder / "kernels" / _digest(self.identity)[:16]
        self._told = False

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under `key`, or None."""
        path = self._path(key)
        if path is None:
            return None
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(error)
            return None
        value = self._understood(text, key)
        if value is None:
            # Another process may have mended it since: then what it found is found out again.
            with suppress(OSError):
                path.unlink()
        return value

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep `value` under `key`; it comes back as JSON has it, a tuple as a list.

        Raises TypeError or ValueError for a value that is no JSON.
        """
        body = {**self.identity, "key": key, "value": dict(value)}
        text = json.dumps(body, allow_nan=False).encode()
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, text)
        except OSError as error:
            self._tell(error)

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{_digest(key)[:32]}.json"

    def _understood(self, text: bytes, key: str) -> dict[str, Any] | None:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(body, dict):
            return None
        value = body.pop("value", None)
        # The names of files are digests; what is inside says whose it is.
        ours = body == {**self.identity, "key": key}
        return value if ours and isinstance(value, dict) else None

    def _tell(self, error: OSError) -> None:
        if self._told:
            return
        self._told = True
        report.warn(
            f"infera-compat: tuned settings of {self.identity['kernel']} can't be kept. Found: "
            f"{error}. Expected: a folder that can be written to. Each start tunes anew; set "
            "INFERA_CACHE_DIR to another folder."
        )


def _replace(path: Path, text: bytes) -> None:
    """Write a file as a whole: who reads it meanwhile sees the old one or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
