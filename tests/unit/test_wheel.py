"""The wheel as it would be published: what is in it, what it needs, and that it works by itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from fake_vllm import build

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as an installer lays it out."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith("infera_compat-")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def info(unpacked: Path) -> Path:
    (folder,) = unpacked.glob("*.dist-info")
    return folder


@pytest.fixture(scope="module")
def metadata(info: Path) -> Message:
    return Parser().parsestr((info / "METADATA").read_text("utf-8"))


def test_it_holds_every_module_and_the_recorded_hashes(unpacked: Path) -> None:
    for source, package in ((ROOT, "infera_compat"), (ROOT / "shims", "infera_shims")):
        own = {
            file.relative_to(source)
            for file in (source / package).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        assert {path for path in own if not (unpacked / path).is_file()} == set()
    assert (unpacked / "infera_shims" / "recorded" / "files.json").is_file()


def test_it_holds_what_verify_and_bench_found_on_gpus_and_nothing_else_that_was_measured(
    unpacked: Path,
) -> None:
    results = ROOT / "matrix" / "results"
    proofs = {file.name for kind in ("verify", "bench") for file in results.glob(f"{kind}-*.json")}
    shipped = {path.name for path in (unpacked / "infera_compat/recorded/results").iterdir()}
    assert shipped == {name for name in proofs if not name.endswith("-cpu.json")}
    assert shipped


def test_unpacked_it_finds_its_records_in_itself(unpacked: Path, tmp_path: Path) -> None:
    ran = build(tmp_path / "site").run(
        """
        from infera_compat.kernels import records
        folder = records.folder_of("infera_compat.kernels.attention.reference", ours=True)
        answer(folder=str(folder))
        """,
        path=(unpacked,),
    )
    assert Path(ran.answer["folder"]) == unpacked / "infera_compat" / "recorded" / "results"


def test_it_holds_two_packages_and_nothing_beside(unpacked: Path, info: Path) -> None:
    assert {path.name for path in unpacked.iterdir()} == {
        "infera_compat",
        "infera_shims",
        info.name,
    }


def test_it_needs_packaging_and_nothing_else_but_by_its_extra(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist") or []
    always = [need for need in needs if "extra ==" not in need]
    assert [need.partition(">")[0].strip() for need in always] == ["packaging"]
    extra = {need.partition(">")[0].strip() for need in needs if "extra == 'cli'" in need}
    assert extra == {"rich", "typer"}
    assert not any(name in need for need in needs for name in ("vllm", "torch", "triton"))


def test_it_runs_on_every_python_that_vllm_runs_on(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Requires-Python"]) == ("infera-compat", ">=3.10")
    assert metadata["License-Expression"] == "Apache-2.0"


def test_it_has_its_entry_points_and_the_command(info: Path) -> None:
    words = (info / "entry_points.txt").read_text().split("\n")
    assert [word for word in words if word] == [
        "[console_scripts]",
        "infera-compat = infera_compat.cli:main",
        "[infera_compat.kernels]",
        "infera_attention = infera_compat.kernels.attention.infera_attention:KERNEL",
        "infera_decode = infera_compat.kernels.attention.infera_decode:KERNEL",
        "infera_experts = infera_compat.kernels.experts.infera:KERNEL",
        "infera_mla_decode = infera_compat.kernels.mla_decode.infera:KERNEL",
        "reference_attention = infera_compat.kernels.attention.reference:KERNEL",
        "reference_experts = infera_compat.kernels.experts.reference:KERNEL",
        "reference_mla_decode = infera_compat.kernels.mla_decode.reference:KERNEL",
        "[vllm.general_plugins]",
        "infera_compat = infera_compat.plugin:register_ops",
        "[vllm.platform_plugins]",
        "infera_compat = infera_compat.plugin:register_platform",
    ]


def test_unpacked_beside_a_vllm_it_serves(unpacked: Path, tmp_path: Path) -> None:
    ran = build(tmp_path / "site").run(
        """
        import infera_compat
        from vllm.fake_engine import Engine
        engine = Engine("attention", "modular-moe")
        engine.step()
        answer(
            at=infera_compat.__file__,
            serving=[layer["calls"]["serving"] for layer in engine.layers().values()],
        )
        """,
        path=(unpacked,),
        INFERA_ATTENTION="passthrough",
        INFERA_MOE="passthrough",
    )
    assert Path(ran.answer["at"]).is_relative_to(unpacked)
    assert ran.answer["serving"] == [1, 1]
