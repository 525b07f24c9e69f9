"""`infera-compat matrix check`: what it says of a release, and the status that it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import skeleton

from infera_compat.cli import recorded
from infera_compat.cli.check import find, nearest, parse
from infera_compat.cli.fetch import Unpublished, fetch
from infera_compat.cli.finding import changes
from infera_compat.errors import CompatError
from infera_compat.release import at
from infera_compat.shims import pick

RECORDED = recorded.releases()
NEWEST = list(RECORDED)[-1]
KERNEL = "vllm.model_executor.layers.fused_moe.modular_kernel:FusedMoEKernel.__init__"


def ran(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "COLUMNS": "200", **environ}
    return subprocess.run(
        [sys.executable, "-c", "from infera_compat.cli import main; main()", *arguments],
        env=given,
        capture_output=True,
        text=True,
    )


def package(
    folder: Path, name: str, called: str | None = None, without: str = "nothing", **changed: Any
) -> Path:
    """A release's recorded definitions as source: one class dropped, one function changed."""
    symbols = {
        symbol: replace(known, **changed) if symbol == changed.get("symbol") else known
        for symbol, known in RECORDED[name].symbols.items()
        if symbol.partition(":")[2].partition(".")[0] != without
    }
    skeleton.write(folder / "vllm", called or name, symbols)
    return folder / "vllm"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_release_is_supported_by_the_shim_that_a_start_picks(
    tmp_path: Path, name: str
) -> None:
    root = package(tmp_path, name)
    finding = find(at(root))
    assert (finding.judgement.name, finding.status, finding.against) == ("SUPPORTED", 0, name)
    assert finding.shim == pick(at(root))[0].name
    assert all(seam.held == seam.of for seam in finding.seams)


def test_a_newer_release_is_outside_until_it_is_recorded(tmp_path: Path) -> None:
    finding = find(at(package(tmp_path, NEWEST, "99.0.0")))
    assert (finding.judgement.name, finding.status, finding.against) == ("OUTSIDE", 1, NEWEST)


def test_what_moved_harmlessly_is_told_and_is_supported(tmp_path: Path) -> None:
    symbol = "vllm.v1.worker.worker_base:WorkerBase.load_model"
    old = RECORDED[NEWEST].symbols[symbol]
    more = (*(old.parameters or ()), "one_more")
    root = package(tmp_path, NEWEST, symbol=symbol, parameters=more)
    finding = find(at(root))
    assert (finding.judgement.name, finding.status) == ("HARMLESS", 0)
    assert [(x.symbol.rpartition(":")[2], x.changes) for x in finding.harmless] == [
        ("WorkerBase.load_model", ("parameters: + one_more",))
    ]
    shown = ran("matrix", "check", "--root", str(root))
    assert shown.returncode == 0
    assert f"Moved harmlessly since {NEWEST}" in shown.stdout
    assert "supported, these moved harmlessly" in shown.stdout


def test_what_moved_is_refused_with_old_and_new_side_by_side(tmp_path: Path) -> None:
    root = package(
        tmp_path,
        NEWEST,
        symbol=KERNEL,
        parameters=("self", "fused_experts"),
        without="MoERunner",
    )
    shown = ran("matrix", "check", "--root", str(root))
    assert shown.returncode == 1
    lines = [line for line in shown.stdout.splitlines() if "method FusedMoEKernel.__init__" in line]
    assert len(lines) == 1
    old, new = lines[0].split("method FusedMoEKernel.__init__")[1:]
    before = RECORDED[NEWEST].symbols[KERNEL].parameters or ()
    assert old.startswith(f"({', '.join(before[:3])}")
    assert new.startswith("(self, fused_experts)")
    assert shown.stdout.count("modular_kernel.py:") >= 2
    assert "refused, this moved" in shown.stdout

    body = json.loads(ran("matrix", "check", "--root", str(root), "--json").stdout)
    assert (body["verdict"], body["status"]) == ("refused", 1)
    moved = {each["symbol"]: each for each in body["moved"]}
    assert moved[KERNEL]["seams"] == ["moe.modular_kernel"]
    assert (moved[KERNEL]["old_release"], moved[KERNEL]["old"] is not None) == (NEWEST, True)
    seams = {f"{seam['op']}.{seam['seam']}": seam for seam in body["seams"]}
    assert KERNEL in seams["moe.modular_kernel"]["moved"]
    assert seams["attention.get_attn_backend_cls"]["moved"] == []


def test_a_class_that_went_elsewhere_is_told_where_it_is(tmp_path: Path) -> None:
    root = package(tmp_path, NEWEST, without="MoERunner")
    (root / "elsewhere.py").write_text("import x\n\nclass MoERunner(Base):\n    pass\n")
    finding = find(at(root))
    shift = next(x for x in finding.shifts if x.moved.need.symbol.endswith(":MoERunner"))
    assert shift.elsewhere == ("elsewhere.py:3",)
    assert "a MoERunner is at elsewhere.py:3" in ran("matrix", "check", "--root", str(root)).stdout


def test_a_wheel_is_judged_like_its_folder(tmp_path: Path) -> None:
    root = package(tmp_path, NEWEST)
    wheel = tmp_path / "vllm.whl"
    with ZipFile(wheel, "w") as archive:
        for file in root.rglob("*.py"):
            archive.write(file, f"vllm/{file.relative_to(root)}")
        archive.writestr("vllm/_C.so", "not to be unpacked")
    shown = ran("matrix", "check", "--wheel", str(wheel))
    assert shown.returncode == 0, shown.stderr
    assert f"vLLM {NEWEST}, in the supported range" in shown.stdout


PIP = """#!{python}
import os, pathlib, sys, zipfile
print("Collecting", sys.argv[-1])
if {published!r}:
    print("ERROR: Could not find a version that satisfies it (from versions: {published})")
    sys.exit(1)
if {broken!r}:
    print("WARNING: Retrying after connection broken: no route to host")
    print("ERROR: Could not find a version that satisfies it (from versions: none)")
    sys.exit(1)
folder = next(pathlib.Path(x.partition("=")[2]) for x in sys.argv if x.startswith("--dest="))
folder.mkdir()
print("  Downloading vllm-1.whl (1.5 MB)")
with zipfile.ZipFile(folder / "vllm-1.whl", "w") as wheel:
    wheel.writestr("vllm/__init__.py", "")
    wheel.writestr("vllm/_version.py", "__version__ = '0.33.0'")
    wheel.writestr("vllm/_C.so", "compiled")
"""


@pytest.fixture
def console() -> Any:
    from rich.console import Console

    return Console(file=open(os.devnull, "w"))  # noqa: PTH123


def pip(folder: Path, monkeypatch: pytest.MonkeyPatch, **says: str) -> Path:
    """A pip that says this, alone on PATH; and an empty cache."""
    file = folder / "bin" / "pip3"
    file.parent.mkdir()
    facts = {"published": "", "broken": ""} | says
    file.write_text(PIP.format(python=sys.executable, **facts))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return file


def test_a_wheel_is_fetched_once_and_only_its_python_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    program = pip(tmp_path, monkeypatch)
    root = fetch("vllm", parse("0.33.0"), console)
    program.unlink()
    assert fetch("vllm", parse("0.33.0"), console) == root
    cache = tmp_path / "cache"
    kept = {str(file.relative_to(root.parent)) for file in cache.rglob("*") if file.is_file()}
    assert kept == {"complete", "vllm/__init__.py", "vllm/_version.py"}


def test_a_release_is_kept_once_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    pip(tmp_path, monkeypatch)
    assert fetch("vllm", parse("0.33"), console) == fetch("vllm", parse("0.33.0"), console)


def test_what_was_fetched_by_halves_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    pip(tmp_path, monkeypatch)
    root = fetch("vllm", parse("0.33.0"), console)
    (root.parent / "complete").unlink()
    (root / "_version.py").unlink()
    assert (fetch("vllm", parse("0.33.0"), console) / "_version.py").is_file()


def test_a_cache_that_cannot_be_written_is_told_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    pip(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nope")
    with pytest.raises(CompatError, match="/proc/nope/infera-compat/releases can't be written"):
        fetch("vllm", parse("0.33.0"), console)


def test_a_release_that_was_never_published_is_told_with_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    pip(tmp_path, monkeypatch, published="0.32.0, 0.33.0")
    with pytest.raises(Unpublished) as error:
        fetch("vllm", parse("0.34.0"), console)
    assert list(map(str, error.value.published)) == ["0.32.0", "0.33.0"]


def test_no_network_no_pip_and_no_version_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Any
) -> None:
    program = pip(tmp_path, monkeypatch, broken="yes")
    with pytest.raises(CompatError, match="no route to host"):
        fetch("vllm", parse("0.33.0"), console)
    program.unlink()
    with pytest.raises(CompatError, match="there is none"):
        fetch("vllm", parse("0.33.0"), console)
    assert not list((tmp_path / "cache/infera-compat/releases").iterdir())
    with pytest.raises(CompatError, match="no version"):
        parse("newest")


@pytest.mark.parametrize(
    "arguments",
    [
        ("newest",),
        (),
        ("--root", "/nowhere"),
        ("--wheel", "/nowhere.whl"),
        ("--wheel", __file__),
        ("0.33.0", "--root", "."),
        ("0.33.0", "--wheel", "x.whl"),
        ("--root", ".", "--wheel", "x.whl"),
    ],
)
def test_what_cannot_be_judged_is_status_2(arguments: tuple[str, ...]) -> None:
    done = ran("matrix", "check", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("infera-compat: ")
    assert "Traceback" not in done.stderr


def test_a_program_gets_the_error_as_json() -> None:
    done = ran("matrix", "check", "--json", "--root", "/nowhere")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, done.stderr) == (2, "")
    assert set(error) == {"what", "found", "expected", "do"}
    assert error["what"] == "/nowhere is no package"


def test_a_version_that_is_no_utf_8_is_judged_all_the_same(tmp_path: Path) -> None:
    root = package(tmp_path, NEWEST)
    file = root / "_version.py"
    file.write_bytes(b"# \xff\n" + file.read_bytes())
    assert find(at(root)).release == NEWEST


@pytest.mark.parametrize("columns", ["60", "80"])
def test_no_seams_name_is_cut_on_a_narrow_screen(tmp_path: Path, columns: str) -> None:
    root = package(tmp_path, NEWEST)
    shown = ran("matrix", "check", "--root", str(root), COLUMNS=columns).stdout
    assert [seam.name for seam in find(at(root)).seams if seam.name not in shown] == []


def test_the_nearest_recorded_release_is_the_newest_that_is_not_newer() -> None:
    known = ["0.22.0", "0.22.1", "0.33.0"]
    assert nearest(parse("0.30.0"), known) == "0.22.1"
    assert nearest(parse("0.22.1+cpu"), known) == "0.22.1"
    assert nearest(parse("0.21.0"), known) == "0.22.0"
    assert nearest(parse("1.0"), known) == "0.33.0"
    assert nearest(None, known) == "0.33.0"


def test_a_line_that_moved_is_no_difference_and_everything_else_is() -> None:
    old = RECORDED[NEWEST].symbols[KERNEL]
    assert changes(old, replace(old, place="elsewhere.py:1")) == ()
    assert changes(old, replace(old, parameters=(old.parameters or ())[::-1])) == (
        "parameters: in another order",
    )
    assert changes(old, replace(old, defaults=(("fused_experts", "None"),))) == (
        "default of fused_experts: none → None",
    )
    assert changes(old, replace(old, kind="property", marks=("property",))) == (
        "decorators: + property",
        "kind: method → property",
    )
    assert changes(old, replace(old, bases=("A",), members=("f",), type="int")) == (
        "bases: + A",
        "members: + f",
        "type: None → int",
    )
