"""Which kernels `auto` may choose: all that it asks for must be there, and each lack is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fake_kernels import Shelf, kernel, shelf
from fake_records import GPU, SIZES, cell, put, ship, table

import infera_shims
from infera_compat.kernels import automatic, sources
from infera_compat.kernels.automatic import Found
from infera_compat.kernels.kernel import OPS
from infera_compat.settings import ALL, AUTO

LOUD = "print('imported')\n"


@pytest.fixture
def put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    with shelf(tmp_path / "site", monkeypatch) as made:
        yield made
    sources.of.cache_clear()


@pytest.fixture
def shipped(put_in: Shelf) -> Callable[..., Path]:
    """Install a kernel in a folder of its own, with a table and records; returns its folder."""

    def install(name: str, op: str = "attention", source: str | None = None, **given: Any) -> Path:
        module = f"package_of_{name}"
        folder = put_in.site / module
        folder.mkdir()
        (folder / "__init__.py").write_text(source or kernel(name, op), "utf-8")
        put_in.put(f"dist-of-{name}", f"{name} = {module}:KERNEL", None)
        ship(folder, name, sources.of(module), op, **given)
        return folder

    return install


def find(
    op: str = "attention",
    kinds: tuple[str, ...] = ("attention",),
    table: str | Path = AUTO,
    gpu: str = GPU,
    line: str = "main",
) -> Found:
    return automatic.find(op, gpu, line, infera_shims.line_of, kinds, table)


def names(found: Found) -> list[str]:
    return [each.entry.name for each in found.candidates]


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_that_ships_all_of_it_may_be_chosen(shipped: Callable[..., Path], op: str) -> None:
    shipped("one", op)
    found = find(OPS[op], (op,))
    assert (names(found), found.against, found.broken) == (["one"], {}, ())
    (candidate,) = found.candidates
    assert candidate.kernel.name == "one"
    assert candidate.table == candidate.measured
    assert automatic.measured_on(GPU)


def test_without_a_table_for_this_gpu_it_is_not_even_imported(
    shipped: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shipped("one", source=LOUD + kernel("one"), gpu="NVIDIA H200")
    found = find()
    assert (names(found), found.against) == ([], {"one": "no table for this GPU"})
    assert found.why_not(GPU) == f"no eligible kernel (none has a table for {GPU})"
    assert not automatic.measured_on(GPU)
    assert "package_of_one" not in sys.modules
    assert capsys.readouterr().out == ""


def test_a_kernel_of_the_other_op_is_none_of_it(shipped: Callable[..., Path]) -> None:
    shipped("one", "experts")
    found = find()
    assert (names(found), found.against) == ([], {})
    assert names(find("moe", ("experts",))) == ["one"]


def test_a_kernel_for_other_layers_says_so(shipped: Callable[..., Path]) -> None:
    shipped("one", "mla_decode")
    assert find().against == {"one": "it is for mla_decode, the model has attention"}
    assert names(find(kinds=("attention", "mla_decode"))) == ["one"]


def edit(file: Path, **fields: Any) -> None:
    put(file, json.loads(file.read_text("utf-8")) | fields)


LACKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "verify": (
        lambda folder: (folder / "records/verify-one-fake.json").unlink(),
        f"no record of verify on {GPU}",
    ),
    "verify of other sources": (
        lambda folder: edit(folder / "records/verify-one-fake.json", sources={"one": "0"}),
        f"verify on {GPU} ran other sources than those installed",
    ),
    "bench": (
        lambda folder: (folder / "records/bench-attention-one-fake-0.32.0.json").unlink(),
        f"no record of bench on {GPU} with vLLM's line main",
    ),
    "bench of this line": (
        lambda folder: edit(
            folder / "records/bench-attention-one-fake-0.32.0.json", release="0.23.0"
        ),
        f"no record of bench on {GPU} with vLLM's line main",
    ),
    "a cell that it wins": (
        lambda folder: edit(
            folder / "tables/one-nvidia-fake.json", cells=[cell("attention", stock=1.02)]
        ),
        "its table prefers stock everywhere",
    ),
    "a table of its own": (
        lambda folder: put(folder / "tables/one-nvidia-fake.json", table("two", cell("attention"))),
        f"its table is of two on {GPU}",
    ),
    "a table of this GPU": (
        lambda folder: put(
            folder / "tables/one-nvidia-fake.json", table("one", cell("attention"), gpu="NVIDIA L4")
        ),
        "its table is of one on NVIDIA L4",
    ),
    "the op of its table": (
        lambda folder: (folder / "__init__.py").write_text(kernel("one", "mla_decode"), "utf-8"),
        "it is for mla_decode, its table for attention",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_it_lacks_is_told(shipped: Callable[..., Path], lack: str) -> None:
    spoil, why = LACKS[lack]
    spoil(shipped("one"))
    found = find()
    assert (names(found), found.against, found.broken) == ([], {"one": why}, ())
    assert found.why_not(GPU) == f"no eligible kernel (one: {why})"


@pytest.mark.parametrize("line", infera_shims.LINES)
def test_each_line_of_releases_wants_a_bench_of_its_own(
    shipped: Callable[..., Path], line: str
) -> None:
    shipped("one", release="0.23.0")
    assert names(find(line=line)) == (["one"] if line == "v0_23" else [])


def test_stock_code_that_no_bench_ran_beside_is_left_out_of_the_table(
    shipped: Callable[..., Path],
) -> None:
    folder = shipped("one")
    rows = (cell("attention"), cell("attention", baseline="TRITON_ATTN"))
    put(folder / "tables/one-nvidia-fake.json", table("one", *rows))
    (candidate,) = find().candidates
    assert candidate.table.baselines == {"FLASH_ATTN"}


BREAKS: dict[str, Callable[[Path], Any]] = {
    "is no table": lambda folder: put(folder / "tables/one-nvidia-fake.json", "{"),
    "verify-one-fake.json is no record": lambda folder: put(
        folder / "records/verify-one-fake.json", "{"
    ),
    "bench-other.json is no record": lambda folder: put(folder / "records/bench-other.json", "{}"),
    "it can't be judged": lambda folder: edit(
        folder / "records/bench-attention-one-fake-0.32.0.json", release="newest"
    ),
    "can't be loaded": lambda folder: (folder / "__init__.py").write_text("1 / 0", "utf-8"),
}


AT_IMPORT = {
    "ends the process": "raise SystemExit(3)",
    "a panic": "class Panic(BaseException): ...\n\n\nraise Panic('of an extension')",
    "a panic in a name": kernel("one")
    + dedent("""
        class B(A):
            @property
            def op(self):
                raise GeneratorExit

        KERNEL = B()
        """),
    "no text": "class E(Exception):\n    def __str__(self): raise ValueError\n\n\nraise E",
}


@pytest.mark.parametrize("what", AT_IMPORT)
def test_whatever_a_module_raises_costs_the_others_nothing(
    shipped: Callable[..., Path], what: str
) -> None:
    (shipped("one") / "__init__.py").write_text(AT_IMPORT[what], "utf-8")
    shipped("two")
    found = find()
    assert (names(found), len(found.broken)) == (["two"], 1)
    assert "one" in found.against


def test_who_interrupts_an_import_ends_the_start(shipped: Callable[..., Path]) -> None:
    (shipped("one") / "__init__.py").write_text("raise KeyboardInterrupt", "utf-8")
    with pytest.raises(KeyboardInterrupt):
        find()


def test_a_module_whose_place_can_t_be_looked_at_is_told_and_costs_the_others_nothing(
    shipped: Callable[..., Path], put_in: Shelf
) -> None:
    put_in.put("dist-of-odd", f"odd = package_of_two.{'a' * 300}:KERNEL", None)
    shipped("two")
    assert automatic.measured_on(GPU)
    found = find()
    assert names(found) == ["two"]
    assert "File name too long" in found.against["odd"]
    assert "odd of dist-of-odd 1.0 is not chosen automatically" in str(found.broken[0])


def test_a_broken_record_of_attention_leaves_experts_beside_it_alone(
    shipped: Callable[..., Path],
) -> None:
    folder = shipped("one", "experts")
    put(folder / "records/bench-attention-fake-0.32.0.json", "{")
    assert names(find("moe", ("experts",))) == ["one"]


def test_a_name_that_two_distributions_claim_is_nobodys_and_says_so(
    shipped: Callable[..., Path], put_in: Shelf
) -> None:
    shipped("one")
    put_in.put("dist-of-another", "one = elsewhere:KERNEL", None)
    assert automatic.measured_on(GPU)
    found = find()
    assert names(found) == []
    assert "name taken by dist-of-another 1.0" in found.why_not(GPU)


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_is_told_and_costs_the_others_nothing(
    shipped: Callable[..., Path], what: str
) -> None:
    BREAKS[what](shipped("one"))
    shipped("two")
    found = find()
    assert names(found) == ["two"]
    (error,) = found.broken
    assert "one of dist-of-one 1.0 is not chosen automatically: " in str(error)
    assert what in str(error)
    assert what in found.against["one"]


def test_of_several_that_is_best_over_the_stock_code_of_a_layer(
    shipped: Callable[..., Path],
) -> None:
    shipped("alpha", cells=2)
    shipped("beta", cells=3)
    shipped("gamma", cells=9, over="TRITON_ATTN")
    found = find()
    assert names(found) == ["alpha", "beta", "gamma"]
    best = {over: found.best(over) for over in ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", None)}
    assert {over: each and each.entry.name for over, each in best.items()} == {
        "FLASH_ATTN": "beta",
        "TRITON_ATTN": "gamma",
        "FLASHINFER": None,
        None: "gamma",
    }


def test_of_equals_it_is_the_first_by_name(shipped: Callable[..., Path]) -> None:
    shipped("beta")
    shipped("alpha")
    best = find().best("FLASH_ATTN")
    assert best is not None
    assert best.entry.name == "alpha"


def test_the_setting_of_tables_says_where_it_runs_not_whether(
    shipped: Callable[..., Path], tmp_path: Path
) -> None:
    shipped("one")
    (everywhere,) = find(table=ALL).candidates
    assert everywhere.table.always
    named = put(tmp_path / "named.json", table("one", cell("attention", 64)))
    (by_file,) = find(table=named).candidates
    assert by_file.table.prefers("FLASH_ATTN", batch=64, **SIZES["attention"])
    assert by_file.wins("FLASH_ATTN") == 1
    put(tmp_path / "named.json", table("one", cell("attention", 64), gpu="NVIDIA L4"))
    found = find(table=named)
    assert names(found) == []
    assert "measured elsewhere" in str(found.broken[0])


def test_a_module_that_has_no_folder_has_no_table(put_in: Shelf) -> None:
    put_in.put("dist", "one = nobodys:KERNEL\ntwo = zlib:KERNEL", None)
    assert not automatic.measured_on(GPU)
    assert find().against == dict.fromkeys(("one", "two"), "no table for this GPU")
