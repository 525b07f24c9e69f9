"""A kernel's digest: other code is another digest, and other words about it are none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from infera_compat.errors import CompatError
from infera_compat.kernels import sources

MODULE = """
    # A comment.
    \"\"\"A docstring
    of two lines.\"\"\"
    import os
    from theirs import helper

    class Kernel:
        "Told."

        def run(self, call):
            '''What it does.'''
            text = '''
            # define SIZE 16
            '''
            return helper.twice(call)  # and why
    """
HELPER = "def twice(x):\n    return 2 * x\n"
FILES = {"__init__.py": "", "kernel.py": MODULE, "helper.py": HELPER, "unused.py": "A = 1\n"}


@pytest.fixture(autouse=True)
def on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)


def digest(folder: Path, files: Mapping[str, str], module: str = "theirs.kernel") -> str:
    for name, text in files.items():
        file = folder / "theirs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), "utf-8")
    sources.of.cache_clear()
    return sources.of(module)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# A comment.", "# Another."),
        ("  # and why", ""),
        ("A docstring\n    of two lines.", "Other words."),
        ('"Told."', '"Told otherwise."'),
        ("'''What it does.'''", '"""What\n            it does."""'),
        ("\n\n", "\n\n\n"),
    ],
)
def test_words_do_not_count(tmp_path: Path, before: str, after: str) -> None:
    found = digest(tmp_path, FILES)
    assert before in MODULE
    assert digest(tmp_path, {"kernel.py": MODULE.replace(before, after)}) == found
    assert len(found) == 16


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("kernel.py", "twice(call)", "twice(7)"),
        ("kernel.py", "SIZE 16", "SIZE 32"),
        ("kernel.py", "# define SIZE 16", "# undef SIZE"),
        ("helper.py", "2 * x", "3 * x"),
    ],
)
def test_code_counts_and_that_of_what_it_imports(
    tmp_path: Path, file: str, before: str, after: str
) -> None:
    found = digest(tmp_path, FILES)
    assert before in FILES[file]
    assert digest(tmp_path, {file: FILES[file].replace(before, after)}) != found


def test_what_it_does_not_import_is_no_part_of_it(tmp_path: Path) -> None:
    found = digest(tmp_path, FILES)
    assert digest(tmp_path, {"unused.py": "A = 2\n"}) == found


def test_code_beside_a_docstring_counts(tmp_path: Path) -> None:
    one = digest(tmp_path, FILES | {"kernel.py": 'def f(): "é told"; return 1\n'})
    assert digest(tmp_path, {"kernel.py": 'def f(): "é"; return 1\n'}) == one
    assert digest(tmp_path, {"kernel.py": 'def f(): "é told"; return 2\n'}) != one


@pytest.mark.parametrize(
    "line",
    [
        "from theirs import far",
        "from theirs.far import VALUE",
        "import theirs.far",
        "from . import far",
        "from .far import VALUE",
        "def f():\n        from .far import VALUE",
    ],
)
def test_however_it_is_imported(tmp_path: Path, line: str) -> None:
    files = {"__init__.py": "", "kernel.py": f"{line}\n", "far.py": "VALUE = 1\n"}
    found = digest(tmp_path, files)
    assert digest(tmp_path, {"far.py": "VALUE = 2\n"}) != found


def test_from_a_package_inside(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "deep/__init__.py": "from ..far import VALUE\n",
        "deep/kernel.py": "from . import VALUE\n",
        "far.py": "VALUE = 1\n",
    }
    found = digest(tmp_path, files, "theirs.deep.kernel")
    assert digest(tmp_path, {"far.py": "VALUE = 2\n"}, "theirs.deep.kernel") != found


def test_what_a_tuner_found_counts(tmp_path: Path) -> None:
    untuned = digest(tmp_path, FILES)
    tuned = digest(tmp_path, {"configs/nvidia-h200.json": "{}"})
    again = digest(tmp_path, {"configs/nvidia-h200.json": '{"warps": 4}'})
    assert len({untuned, tuned, again}) == 3


def test_measured_tables_do_not_count(tmp_path: Path) -> None:
    found = digest(tmp_path, FILES)
    assert digest(tmp_path, {"tables/kernel-nvidia-h200.json": "{}"}) == found


def test_a_module_alone(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("A = 1\n", "utf-8")
    found = sources.of("alone")
    sources.of.cache_clear()
    (tmp_path / "alone.py").write_text("A = 2\n", "utf-8")
    assert sources.of("alone") != found
    assert sources.folder("alone") == tmp_path


def test_of_our_own_kernels_it_has_what_they_share_and_not_the_contract() -> None:
    reached = sources._reached("infera_compat.kernels.experts.reference")
    assert "infera_compat.kernels.experts.reference" in reached
    assert not [name for name in reached if name.endswith((".contract", ".kernel", ".errors"))]
    other = sources._reached("infera_compat.kernels.mla_decode.reference")
    assert "infera_compat.kernels.online_softmax" in other


@pytest.mark.parametrize("text", ["def f(:\n", "A = '\\\n", "# -*- coding: nothing -*-\n"])
def test_what_can_t_be_read_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(CompatError, match="can't be read"):
        digest(tmp_path, FILES | {"kernel.py": text})


@pytest.mark.parametrize("module", ["nobodys", "nobodys.kernel", "theirs.nothing", "zlib"])
def test_what_has_no_source_is_told(tmp_path: Path, module: str) -> None:
    with pytest.raises(CompatError, match="no file of the module"):
        digest(tmp_path, FILES, module)


def test_nothing_is_imported_for_it(tmp_path: Path) -> None:
    digest(tmp_path, FILES)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from infera_compat.kernels import sources
sources.of("theirs.kernel")
ours = sources.of("infera_compat.kernels.attention.reference")
print([x for x in ("theirs", "torch", "infera_compat.kernels.attention") if x in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_kernels_digest_is_that_of_the_module_of_its_class(tmp_path: Path) -> None:
    digest(tmp_path, FILES)
    import theirs.kernel as module  # type: ignore[import-not-found]

    try:
        assert sources.digest(module.Kernel()) == sources.of("theirs.kernel")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "theirs"]:
            del sys.modules[name]
