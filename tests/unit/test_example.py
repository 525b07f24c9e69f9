"""The example of a third party's distribution: built as it stands, found, and told when broken."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fake_kernels import Shelf, kernel

from infera_compat.errors import CompatError
from infera_compat.kernels import registry
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.kernel import ATTENTION

EXAMPLE = Path(__file__).parents[2] / "examples" / "infera_example_kernels"
NAME = "example_attention"
DISTRIBUTION = "infera-example-kernels"
INFO = "infera_example_kernels-1.0.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=EXAMPLE,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def installed(shelf: Shelf, wheel: Path) -> Shelf:
    """A shelf with the example as an installer lays it out."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(shelf.site)
    return shelf


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As much of torch as the example's module reads when it is imported."""
    module = ModuleType("torch")
    vars(module).update(float32="float32", bfloat16="bfloat16", float16="float16")
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_it_is_a_module_and_its_metadata_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert tops == {"infera_example_kernels.py", INFO}


def test_installed_it_is_found_with_its_distribution(installed: Shelf) -> None:
    found = registry.find()
    assert found.names() == (NAME,)
    assert str(found.entries[NAME]) == f"{NAME} of {DISTRIBUTION} 1.0"


def test_it_is_loaded_where_there_is_torch(installed: Shelf, torch: ModuleType) -> None:
    loaded = registry.find().load(NAME)
    assert (loaded.name, loaded.op) == (NAME, ATTENTION)
    plain = {"heads": 8, "kv_heads": 2, "head_size": 64, "dtype": "float16", "kv_dtype": "float16"}
    assert loaded.supports(AttentionSpec(**plain)) is None
    for special, word in (
        ({"kv_dtype": "fp8"}, "fp8"),
        ({"window": 128}, "a window"),
        ({"soft_cap": 30.0, "sinks": True}, "a soft cap, sinks"),
        ({"alibi": True}, "ALiBi"),
        ({"causal": False}, "not causal"),
    ):
        assert word in str(loaded.supports(AttentionSpec(**plain | special)))


def test_without_torch_it_is_not_loaded(installed: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    kernels, (broken,) = registry.find().load_all()
    assert (kernels, broken.missing) == ({}, "torch")
    assert str(broken).startswith("not loaded: ")


def edited(before: str, after: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert before in text
        return text.replace(before, after)

    return edit


@pytest.mark.parametrize(
    ("file", "edit", "words"),
    [
        ("infera_example_kernels.py", edited("def run(", "def run"), "SyntaxError"),
        ("infera_example_kernels.py", edited("import torch\n", "import torhc\n"), "'torhc'"),
        ("infera_example_kernels.py", edited("    def supports", "    def support"), "TypeError"),
        (
            "infera_example_kernels.py",
            edited("= ExampleAttention()", "= ExampleAttention"),
            "class",
        ),
        ("infera_example_kernels.py", edited(f'"{NAME}"', '"other"'), "the name 'other'"),
        (f"{INFO}/entry_points.txt", edited(":KERNEL", ":KERNELS"), "no attribute 'KERNELS'"),
        (f"{INFO}/entry_points.txt", edited("= infera", "= inferra"), "No module named 'inferra"),
    ],
    ids=["syntax", "import", "method", "class", "name", "attribute", "module"],
)
def test_broken_it_is_told_by_its_distribution(
    installed: Shelf, torch: ModuleType, file: str, edit: Callable[[str], str], words: str
) -> None:
    path = installed.site / file
    path.write_text(edit(path.read_text("utf-8")), "utf-8")
    installed.put_kernel("another")
    kernels, (broken,) = registry.find().load_all()
    assert list(kernels) == ["another"]
    assert broken.entry.distribution == DISTRIBUTION
    assert words in broken.found
    with pytest.raises(CompatError, match=f"{NAME} of {DISTRIBUTION} 1.0 can't be loaded"):
        registry.find().load(NAME)


def test_another_distribution_with_its_name_breaks_both(
    installed: Shelf, torch: ModuleType
) -> None:
    installed.put("copycat", f"{NAME} = copycat:KERNEL", kernel(NAME))
    kernels, broken = registry.find().load_all()
    assert kernels == {}
    assert [one.entry.distribution for one in broken] == ["copycat", DISTRIBUTION]
