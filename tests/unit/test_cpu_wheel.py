"""A stock wheel's Python with another build's CPU operators: a wheel that an installer accepts."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

pytest.importorskip("tomllib", reason="made and used by Python 3.11 alone")

SCRIPT = Path(__file__).parents[2] / "matrix/cpu_wheel.py"
METADATA = "Metadata-Version: 2.4\nName: vllm\nVersion: 0.33.0\n\nVersion: 0.33.0 is out.\n"
STOCK = {
    "vllm/__init__.py": "stock = 1",
    "vllm/_version.py": "__version__ = '0.33.0'",
    "vllm/a,b.json": "{}",
    "vllm/_C.abi3.so": "CUDA",
    "vllm/lib/libx.so.1": "CUDA",
    "vllm-0.33.0.dist-info/METADATA": METADATA,
    "vllm-0.33.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: cp38-abi3-manylinux_2_28_x86_64\n",
    "vllm-0.33.0.dist-info/RECORD": "out of date",
}
BUILD = {"vllm/__init__.py": "other = 1", "vllm/_C.abi3.so": "CPU", "vllm/_C_AVX2.abi3.so": "AVX2"}


@pytest.fixture(scope="module")
def cpu_wheel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cpu_wheel", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def packed(file: Path, content: dict[str, str]) -> Path:
    with ZipFile(file, "w") as wheel:
        for name, text in content.items():
            wheel.writestr(name, text)
    return file


@pytest.fixture
def mixed(cpu_wheel: ModuleType, tmp_path: Path) -> dict[str, bytes]:
    out = tmp_path / "vllm-0.33.0+cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    cpu_wheel.mix(packed(tmp_path / "a.whl", STOCK), packed(tmp_path / "b.whl", BUILD), out)
    with ZipFile(out) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_python_is_stocks_operators_are_the_builds(mixed: dict[str, bytes]) -> None:
    assert mixed["vllm/__init__.py"] == b"stock = 1"
    assert mixed["vllm/_version.py"] == b"__version__ = '0.33.0'"
    assert mixed["vllm/_C.abi3.so"] == b"CPU"
    assert mixed["vllm/_C_AVX2.abi3.so"] == b"AVX2"
    assert "vllm/lib/libx.so.1" not in mixed


def test_only_the_metadata_says_cpu(mixed: dict[str, bytes]) -> None:
    text = mixed["vllm-0.33.0+cpu.dist-info/METADATA"].decode()
    assert text == METADATA.replace("Version: 0.33.0\n", "Version: 0.33.0+cpu\n", 1)
    assert not any(name.startswith("vllm-0.33.0.dist-info") for name in mixed)


def test_the_record_lists_every_file_with_its_hash_and_size(mixed: dict[str, bytes]) -> None:
    record = "vllm-0.33.0+cpu.dist-info/RECORD"
    rows = {row[0]: row[1:] for row in csv.reader(mixed[record].decode().splitlines())}
    assert set(rows) == set(mixed)
    assert rows.pop(record) == ["", ""]
    for name, (digest, size) in rows.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(mixed[name]).digest()).decode()
        assert digest == f"sha256={sha.rstrip('=')}"
        assert int(size) == len(mixed[name])


def test_the_same_two_wheels_give_the_same_file(cpu_wheel: ModuleType, tmp_path: Path) -> None:
    stock, build = packed(tmp_path / "a.whl", STOCK), packed(tmp_path / "b.whl", BUILD)
    outs = [tmp_path / n / "vllm-0.33.0+cpu-cp38-abi3-any.whl" for n in ("1", "2")]
    for out in outs:
        out.parent.mkdir()
        cpu_wheel.mix(stock, build, out)
    assert outs[0].read_bytes() == outs[1].read_bytes()


@pytest.mark.parametrize(
    ("stock", "build", "said"),
    [
        (STOCK, {"vllm/__init__.py": ""}, "no build for a CPU"),
        ({"vllm/__init__.py": ""}, BUILD, "has no vllm-0.33.0.dist-info/METADATA"),
    ],
)
def test_other_wheels_are_refused(
    cpu_wheel: ModuleType, tmp_path: Path, stock: dict[str, str], build: dict[str, str], said: str
) -> None:
    out = tmp_path / "vllm-0.33.0+cpu-cp38-abi3-any.whl"
    with pytest.raises(ValueError, match=said):
        cpu_wheel.mix(packed(tmp_path / "a.whl", stock), packed(tmp_path / "b.whl", build), out)
