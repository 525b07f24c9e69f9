"""`infera-compat report`, with and without a run's file, and without the libraries it needs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import RECORDED, Fake, Ran, build
from typer.testing import CliRunner

import infera_shims
from infera_compat.cli.app import app
from infera_compat.settings import SEAMS

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
MAIN = """
import sys
from infera_compat.cli import main
{0}
main()
"""
MAIN_SHIM = infera_shims.order(None)[0]
# Wide enough that no table's cell is broken.
WIDE = {"COLUMNS": "300", "TERM": "dumb"}


def cli(fake: Fake, *words: str, first: str = "", **environ: str) -> Ran:
    return fake.run(MAIN.format(first), *words, **WIDE, **environ)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(fake: Fake, missing: str) -> None:
    fake.write(
        "missing.py",
        f"""
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name == {missing!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Missing())
        """,
    )
    ran = cli(fake, "report", first="import missing")
    assert ran.status == 2
    assert f"needs {missing}, which is not installed" in ran.err
    assert "pip install 'infera-compat[cli]'" in ran.err
    assert "Traceback" not in ran.err


def test_a_module_of_our_own_that_is_missing_is_not_taken_for_the_extra(fake: Fake) -> None:
    ran = cli(fake, "report", first="sys.modules['infera_compat.cli.report'] = None")
    assert ran.status == 1
    assert "Traceback" in ran.err


@pytest.mark.parametrize("line", RECORDED)
def test_it_reports_release_shim_contracts_and_seams_without_an_engine(
    make_fake: Callable[..., Fake], line: str
) -> None:
    ran = cli(make_fake(line), "report", "--json", **BOTH)
    facts = json.loads(ran.out)
    assert ran.status == 0
    assert (facts["vllm"], facts["distribution"], facts["shim"]) == (RECORDED[line], None, line)
    assert (facts["disabled"], facts["layers"]) == (False, None)
    contracts = facts["contracts"]
    assert (contracts["held"], contracts["moved"]) == (contracts["of"], [])
    on_cpu = "modular_kernel" if line == "main" else "register_oot"
    moe = dict.fromkeys(SEAMS["moe"], "only by INFERA_MOE_SEAM={}")
    moe |= {on_cpu: "taken on cpu", "modular_kernel": "taken on cuda"}
    if line == "main":
        moe["modular_kernel"] = "taken on cuda and cpu"
    assert facts["ops"]["moe"]["seams"] == {seam: why.format(seam) for seam, why in moe.items()}
    assert facts["ops"]["attention"]["seams"] == {
        "get_attn_backend_cls": "taken on cuda and cpu",
        "platform": "only by INFERA_ATTENTION_SEAM=platform",
        "layer": "taken on cuda and cpu",
        "pluggable_layer": "only by INFERA_ATTENTION_SEAM=pluggable_layer",
        "model": "only by INFERA_ATTENTION_SEAM=model",
    }


def seams(fake: Fake, op: str, **environ: str) -> dict[str, str]:
    facts = json.loads(cli(fake, "report", "--json", **environ).out)
    found: dict[str, str] = facts["ops"][op]["seams"]
    return found


@pytest.mark.parametrize("op", SEAMS)
def test_where_a_seam_is_forced_every_other_says_so(fake: Fake, op: str) -> None:
    name, forced = f"INFERA_{op.upper()}_SEAM", SEAMS[op][-1]
    found = seams(fake, op, **{name: forced}, **BOTH)
    expected = dict.fromkeys(SEAMS[op], f"{name}={forced}")
    assert found == expected | {forced: "taken on cuda and cpu"}


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "nothing to bind (auto: not known without a GPU)"),
        ({"INFERA_MOE": "off"}, "nothing to bind (INFERA_MOE=off)"),
        ({"INFERA_MOE_SEAM": "model"}, "nothing to bind (auto: not known without a GPU)"),
    ],
    ids=["auto", "off", "a seam and no kernel"],
)
def test_where_nothing_is_bound_every_seam_says_why(
    fake: Fake, environ: dict[str, str], why: str
) -> None:
    assert seams(fake, "moe", **environ) == dict.fromkeys(SEAMS["moe"], why)


def test_a_seam_that_moved_says_what_and_the_others_are_told_as_ever(fake: Fake) -> None:
    fake.edit("platforms/interface.py", "selected_backend, attn", "backend, attn")
    found = seams(fake, "attention", **BOTH)
    moved = "moved: vllm.platforms.interface:Platform.get_attn_backend_cls"
    assert (found["get_attn_backend_cls"], found["platform"]) == (moved, moved)
    assert found["layer"] == "taken on cuda and cpu"


def test_a_seam_that_moved_on_one_device_is_taken_on_the_other(
    make_fake: Callable[..., Fake],
) -> None:
    fake = make_fake("v0_24")
    fake.edit("model_executor/custom_op.py", "op_registry_oot: dict", "op_registry_oot: list")
    found = seams(fake, "moe", **BOTH)
    assert found["register_oot"] == "moved: vllm.model_executor.custom_op:op_registry_oot"
    assert found["modular_kernel"] == "taken on cuda"


def test_it_imports_no_vllm(fake: Fake) -> None:
    fake.edit("__init__.py", "import vllm.envs", "raise ImportError('imported')")
    assert cli(fake, "report").status == 0


def test_it_says_the_same_to_a_person(fake: Fake) -> None:
    ran = cli(fake, "report", INFERA_MOE="off")
    held = f"contracts {len(MAIN_SHIM.needs)}/{len(MAIN_SHIM.needs)}"
    assert f"on vLLM 0.32.0 (no distribution, a source tree): shim main, {held}" in ran.out
    assert "INFERA_MOE=off" in ran.out
    assert "auto: not known without a GPU" in ran.out
    assert "not known yet" in ran.out


def test_it_tells_a_person_every_seams_fate(fake: Fake) -> None:
    ran = cli(fake, "report", INFERA_MOE_SEAM="register_oot", **BOTH)
    rows = [[cell.strip() for cell in line.split("│")[-3:-1]] for line in ran.out.splitlines()]
    for row in (
        ["layer", "taken on cuda and cpu"],
        ["model", "only by INFERA_ATTENTION_SEAM=model"],
        ["register_oot", "taken on cuda and cpu"],
        ["modular_kernel", "INFERA_MOE_SEAM=register_oot"],
    ):
        assert row in rows


def test_it_says_that_all_is_off(fake: Fake) -> None:
    ran = cli(fake, "report", INFERA_VLLM_OPS_DISABLE="1")
    assert "INFERA_VLLM_OPS_DISABLE=1: all of it is switched off" in ran.out
    assert json.loads(cli(fake, "report", "--json", INFERA_VLLM_OPS_DISABLE="1").out)["disabled"]


def test_what_moved_is_listed_and_is_its_status(fake: Fake) -> None:
    fake.edit("platforms/interface.py", "selected_backend, attn", "backend, attn")
    ran = cli(fake, "report")
    assert ran.status == 1
    assert f"shim main, contracts {len(MAIN_SHIM.needs) - 1}/{len(MAIN_SHIM.needs)}" in ran.out
    assert (
        "get_attn_backend_cls(cls, backend, attn_selector_config, num_heads=None) at platforms/"
        in ran.out
    )
    assert len(json.loads(cli(fake, "report", "--json").out)["contracts"]["moved"]) == 1


def test_without_a_vllm_it_says_so_plainly(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = cli(Fake(tmp_path / "empty"), "report")
    assert ran.status == 2
    assert "vLLM is not installed" in ran.err
    assert "Traceback" not in ran.err


def test_an_unknown_setting_is_told_plainly(fake: Fake) -> None:
    ran = cli(fake, "report", INFERA_MOE="nonsense")
    assert ran.status == 2
    assert "auto, passthrough, off" in ran.err
    assert "Traceback" not in ran.err


def test_an_unknown_setting_is_told_to_a_program_as_json(fake: Fake) -> None:
    ran = cli(fake, "report", "--json", INFERA_MOE="nonsense")
    assert (ran.status, json.loads(ran.out)["error"]["what"]) == (2, "INFERA_MOE is not known")


def test_switched_off_an_unknown_setting_is_no_error(fake: Fake) -> None:
    ran = cli(fake, "report", INFERA_MOE="nonsense", INFERA_VLLM_OPS_DISABLE="1")
    assert (ran.status, "all of it is switched off" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("allowed", "loaded"),
    [("", False), ("other", False), (" infera_compat", False), ("other,infera_compat", True)],
)
def test_it_says_whether_vllm_will_load_it(fake: Fake, allowed: str, loaded: bool) -> None:
    facts = json.loads(cli(fake, "report", "--json", VLLM_PLUGINS=allowed).out)
    assert facts["loaded"] is loaded
    said = "vLLM will not load us" in cli(fake, "report", VLLM_PLUGINS=allowed).out
    assert said is not loaded


def test_a_misspelt_variable_is_told(fake: Fake) -> None:
    name, likely = "INFERA_ATENTION", "INFERA_ATTENTION"
    facts = json.loads(cli(fake, "report", "--json", **{name: "off"}).out)
    assert facts["misspelt"] == {name: likely}
    said = cli(fake, "report", **{name: "off"}).out
    assert f"{name} is set and means nothing; did you mean {likely}?" in said


def test_no_seams_name_is_cut_on_a_narrow_screen(fake: Fake) -> None:
    shown = fake.run(MAIN.format(""), "report", COLUMNS="60", TERM="dumb").out
    assert [seam for op in SEAMS for seam in SEAMS[op] if seam not in shown] == []


def test_the_version_is_told_without_anything_else(fake: Fake) -> None:
    assert cli(fake, "--version").out == "infera-compat 0.1.0\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run with two bound layers and a stock one between them wrote."""
    folder = tmp_path_factory.mktemp("run")
    file = folder / "report.jsonl"
    layers = ("attention", "cache-only", "modular-moe")
    build(folder / "site").serve(*layers, INFERA_REPORT=str(file), **BOTH)
    return file.read_text("utf-8")


@pytest.fixture
def file(written: str, tmp_path: Path) -> Path:
    path = tmp_path / "report.jsonl"
    path.write_text(written, "utf-8")
    return path


def told(*words: str) -> Ran:
    """What `infera-compat report` says of a file, in this process: no vLLM has a part in it."""
    done = CliRunner(env=WIDE).invoke(app, ["report", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


def test_a_runs_file_is_read_with_layers_and_calls(file: Path) -> None:
    ran = told("--from", str(file))
    assert ran.status == 0
    for part in (
        "model.layers.0.self_attn.attn",
        "CPU_ATTN",
        "CPUUnquantizedExperts",
        "stock: CacheOnlyAttentionLayer is none of",
        "served",
    ):
        assert part in ran.out
    assert "never fired" not in ran.out
    (process,) = json.loads(told("--json", "--from", str(file)).out)
    assert [layer["bound"] for layer in process["layers"]] == [True, False, True]


def rewritten(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    change(entries[-1])
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_a_layer_that_is_bound_and_never_fired_is_reported_and_is_its_status(file: Path) -> None:
    rewritten(file, lambda entry: entry["layers"][0]["calls"].update(serving=0))
    ran = told("--from", str(file))
    assert ran.status == 1
    assert "bound but never fired: model.layers.0.self_attn.attn" in ran.out
    assert told("--json", "--from", str(file)).status == 1


def test_a_layer_that_another_plugin_holds_too_is_told_with_its_name(file: Path) -> None:
    rewritten(file, lambda entry: entry["layers"][0].update(shared_with="their_plugin"))
    assert "get_attn_backend_cls, before their_plugin" in told("--from", str(file)).out


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ({"capture": 2, "replayed": 3}, 0),
        ({"capture": 2, "replayed": 0}, 1),
        ({"capture": 2, "replayed": None}, 0),
        ({"capture": 0, "replayed": None}, 1),
    ],
)
def test_a_layer_that_only_graphs_run_is_judged_by_its_replays(
    file: Path, calls: dict[str, int | None], status: int
) -> None:
    rewritten(file, lambda entry: entry["layers"][0]["calls"].update(serving=0, **calls))
    assert told("--from", str(file)).status == status


def test_a_layer_that_ran_and_is_none_of_the_models_is_reported(file: Path) -> None:
    rewritten(file, lambda entry: entry["unknown_layers"].append({"op": "moe", "layer": "stray"}))
    assert "ran but is no layer of the model" in told("--from", str(file)).out


def test_each_process_is_told_by_its_last_word(file: Path) -> None:
    lines = file.read_text().splitlines()
    others = [{"process": "EngineCore"}, {"pid": os.getpid()}]
    first = [json.dumps(json.loads(lines[0]) | other) for other in others]
    file.write_text("\n".join([*first, *lines]) + "\n")
    found = json.loads(told("--json", "--from", str(file)).out)
    assert [entry["event"] for entry in found] == ["registered", "registered", "served"]


TRUNCATED = '{"event": "served", "pid": 1, "process": "Main'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "there is no report to read", id="missing"),
        pytest.param(TRUNCATED.encode(), "line 1 of", id="truncated"),
        pytest.param(b'{"level": "info", "msg": "started"}\n', "line 1 of", id="foreign JSON"),
        pytest.param(b"[1, 2]\n", "line 1 of", id="a list"),
        pytest.param(b"INFO 12-01 vllm started\n", "line 1 of", id="a log"),
        pytest.param(
            b'{"pid": 1, "process": "nginx", "msg": "x"}\n', "line 1 of", id="another's JSON"
        ),
        pytest.param(b"", "nothing in", id="empty"),
        pytest.param(b"\x89PNG\r\n\x1a\n\x00\xff\n", "line 1 of", id="no text"),
    ],
)
def test_a_file_that_is_none_of_ours_is_told_plainly(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "other.jsonl"
    if content is not None:
        path.write_bytes(content)
    ran = told("--from", str(path))
    assert ran.status == 2
    assert words in ran.err
    assert str(path) in ran.err


@pytest.mark.parametrize("part", ["calls", "over", "why_not"])
def test_a_layer_that_lacks_a_part_is_told_plainly(file: Path, part: str) -> None:
    rewritten(file, lambda entry: entry["layers"][0].pop(part))
    ran = told("--from", str(file))
    assert (ran.status, "layers of another make" in ran.err) == (2, True)


def test_a_layer_that_lacks_a_count_is_told_plainly(file: Path) -> None:
    rewritten(file, lambda entry: entry["layers"][0]["calls"].pop("serving"))
    ran = told("--from", str(file))
    assert (ran.status, "layers of another make" in ran.err) == (2, True)


def test_a_line_that_was_cut_off_is_named_by_its_number(file: Path) -> None:
    with file.open("a") as text:
        text.write(TRUNCATED)
    ran = told("--from", str(file))
    assert ran.status == 2
    assert f"line {len(file.read_text().splitlines())} of" in ran.err


def test_a_folder_is_no_report(tmp_path: Path) -> None:
    assert told("--from", str(tmp_path)).status == 2


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The two folders of a checkout that recording writes to."""
    (tmp_path / "checkout" / "matrix" / "contracts").mkdir(parents=True)
    (tmp_path / "checkout" / "shims" / "infera_shims" / "recorded").mkdir(parents=True)
    return tmp_path / "checkout"


def test_recording_a_release_writes_what_the_plugin_then_knows_it_by(
    make_fake: Callable[..., Fake], checkout: Path
) -> None:
    for line in ("v0_23", "main"):
        fake = make_fake(line)
        words = ("matrix", "record", "--root", str(fake.root), "--checkout", str(checkout))
        assert cli(fake, *words).status == 0
    known = json.loads((checkout / "shims/infera_shims/recorded/files.json").read_text())
    assert set(known) == {"v0_23", "main"}
    entry = json.loads((checkout / "matrix/contracts/0.32.0.json").read_text())
    assert (entry["release"], entry["shim"], list(entry["files"])) == ("0.32.0", "main", ["vllm"])
    assert known["main"] == {name: [sha] for name, sha in entry["files"]["vllm"].items()}


def test_a_release_that_moved_is_not_recorded(fake: Fake, checkout: Path) -> None:
    fake.edit("v1/core/sched/output.py", "total_num_scheduled_tokens", "tokens")
    ran = cli(fake, "matrix", "record", "--root", str(fake.root), "--checkout", str(checkout))
    assert ran.status == 1
    assert "not recorded" in ran.out
    assert list((checkout / "matrix" / "contracts").iterdir()) == []


def test_recording_asks_for_a_checkout(fake: Fake, tmp_path: Path) -> None:
    ran = cli(
        fake, "matrix", "record", "--root", str(fake.root), "--checkout", str(tmp_path / "none")
    )
    assert ran.status == 2
    assert "is no checkout" in ran.err
