"""Where a measured kernel runs: never where it was not measured, or was not faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infera_compat.errors import OFF_SWITCH, CompatError
from infera_compat.kernels.kernel import OPS
from infera_compat.kernels.table import FASTER, KEYS, Table, slug

H200 = "NVIDIA H200"
MEASURED = {"release": "0.33.0", "commit": "1a2b3c4", "date": "2026-11-30"}
LAYERS = {
    "attention": {"heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16},
    "mla_decode": {"heads": 16, "latent": 512, "rope": 64, "block_size": 64},
    "experts": {"experts": 128, "top_k": 8, "hidden": 2048, "intermediate": 768},
}


STOCK = {"attention": "FLASH_ATTN", "mla_decode": "FLASHMLA", "experts": "TritonExperts"}


def cell(
    op: str, size: int, stock: float = 2.0, ours: float = 1.0, baseline: Any = None, **key: int
) -> dict[str, Any]:
    times = {
        "baseline": STOCK[op] if baseline is None else baseline,
        "stock_us": stock,
        "ours_us": ours,
    }
    return {KEYS[op][0]: size, **LAYERS[op], **key, **times}


def body(*cells: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    table = {"kernel": "one", "gpu": H200, "measured": MEASURED, "cells": list(cells)}
    return table | fields


def written(folder: Path, content: Any) -> Path:
    path = folder / "tables" / "one-nvidia-h200.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
    return path


def prefers(table: Table, op: str, size: int, **key: int) -> bool:
    return table.prefers(STOCK[op], **({KEYS[op][0]: size} | LAYERS[op] | key))


def test_every_op_has_its_key() -> None:
    assert set(KEYS) == set(OPS)
    assert not any("len" in name for names in KEYS.values() for name in names)


@pytest.mark.parametrize("op", OPS)
def test_the_nearest_bucket_at_or_above_decides(tmp_path: Path, op: str) -> None:
    cells = (cell(op, 64, ours=3.0), cell(op, 1), cell(op, 8, ours=2.0), cell(op, 16))
    table = Table.read(written(tmp_path, body(*cells)))
    assert (table.kernel, table.gpu, table.measured, table.op) == ("one", H200, MEASURED, op)
    found = {size for size in range(1, 80) if prefers(table, op, size)}
    assert found == {1, *range(9, 17)}


@pytest.mark.parametrize("op", OPS)
def test_a_layer_of_other_sizes_is_stocks(tmp_path: Path, op: str) -> None:
    table = Table.read(written(tmp_path, body(cell(op, 8))))
    assert prefers(table, op, 8)
    for name, value in LAYERS[op].items():
        assert not prefers(table, op, 8, **{name: value + 1})


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(1, 64), st.sampled_from([8, 16])),
        st.tuples(st.integers(1, 3), st.integers(1, 3)),
    ),
    size=st.integers(1, 80),
    block_size=st.sampled_from([8, 16, 32]),
)
def test_it_says_what_looking_at_each_cell_says(
    cells: dict[tuple[int, int], tuple[int, int]],
    size: int,
    block_size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = [
        cell("attention", bucket, stock, ours, block_size=block)
        for (bucket, block), (stock, ours) in cells.items()
    ]
    table = Table.read(written(tmp_path_factory.getbasetemp(), body(*rows)))
    above = [bucket for bucket, block in cells if block == block_size and bucket >= size]
    stock, ours = cells[min(above), block_size] if above else (1, 1)
    assert prefers(table, "attention", size, block_size=block_size) is (ours < stock)


def test_without_cells_all_is_stocks_and_everywhere_none(tmp_path: Path) -> None:
    empty = Table.read(written(tmp_path, body()))
    assert (empty.op, prefers(empty, "attention", 1)) == (None, False)
    assert not prefers(Table(), "experts", 1)
    assert prefers(Table.everywhere(), "experts", 1)


def test_a_key_of_another_op_is_a_mistake(tmp_path: Path) -> None:
    table = Table.read(written(tmp_path, body(cell("attention", 8))))
    with pytest.raises(TypeError, match="block_size"):
        prefers(table, "experts", 8)
    with pytest.raises(TypeError, match="block_size"):
        table.prefers("FLASH_ATTN", batch=8)
    with pytest.raises(TypeError, match="step's sizes"):
        table.prefers("FLASH_ATTN", **LAYERS["attention"])


@pytest.mark.parametrize(("stock", "faster"), [(FASTER, True), (1.029, False), (1.0, False)])
def test_what_gains_too_little_is_stocks(tmp_path: Path, stock: float, faster: bool) -> None:
    table = Table.read(written(tmp_path, body(cell("attention", 8, stock, 1.0))))
    assert prefers(table, "attention", 8) is faster


def test_each_cell_speaks_of_its_own_stock_code(tmp_path: Path) -> None:
    over = {"FLASH_ATTN": 1.0, "TRITON_ATTN": 5.0}
    cells = [cell("attention", 8, stock, 1.0, name) for name, stock in over.items()]
    cells.append(cell("attention", 16, 5.0, 1.0, "TRITON_ATTN"))
    table = Table.read(written(tmp_path, body(*cells)))
    assert table.baselines == set(over)
    sizes = {"batch": 8, **LAYERS["attention"]}
    found = {name: table.prefers(name, **sizes) for name in (*over, "FLASHINFER")}
    assert found == {"FLASH_ATTN": False, "TRITON_ATTN": True, "FLASHINFER": False}
    assert {name: table.wins(name) for name in found} == {
        "FLASH_ATTN": 0,
        "TRITON_ATTN": 2,
        "FLASHINFER": 0,
    }
    assert table.only({"FLASH_ATTN"}).wins("TRITON_ATTN") == 0
    assert table.only({"TRITON_ATTN"}).wins("TRITON_ATTN") == 2


def test_whether_it_is_ever_faster_where_a_size_is_not_known_yet(tmp_path: Path) -> None:
    cells = (cell("attention", 8), cell("attention", 8, ours=2.0, block_size=64))
    table = Table.read(written(tmp_path, body(*cells)))
    layer = LAYERS["attention"]
    ever = {
        size: table.ever("FLASH_ATTN", **(layer | {"block_size": size})) for size in (16, 64, None)
    }
    assert ever == {16: True, 64: False, None: True}
    assert not table.ever("TRITON_ATTN", **(layer | {"block_size": None}))
    assert not table.ever("FLASH_ATTN", **(layer | {"heads": 64, "block_size": None}))
    assert Table.everywhere().ever("TRITON_ATTN", **(layer | {"block_size": None}))
    assert not Table().ever("FLASH_ATTN", **layer)


@pytest.mark.parametrize("op", OPS)
def test_a_layers_row_says_what_the_table_says(tmp_path: Path, op: str) -> None:
    table = Table.read(written(tmp_path, body(cell(op, 8), cell(op, 64, ours=3.0))))
    for one in (table, Table.everywhere(), Table()):
        row = one.row(STOCK[op], **LAYERS[op])
        for size in (1, 8, 9, 64, 65, 10**9):
            assert row.prefers(size) is prefers(one, op, size)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "(a list)"),
        (7, "(a int)"),
        ({}, "fields (none)"),
        (body(op="attention"), "fields kernel, gpu, measured, cells, op"),
        (body(kernel=None), "kernel or gpu"),
        (body(gpu=7), "kernel or gpu"),
        (body(measured={"release": "0.33.0"}), "needs release, commit, date"),
        (body(measured=MEASURED | {"date": 7}), "needs release, commit, date"),
        (body(measured="today"), "(a str)"),
        (body(cells={}), "cells is no list"),
        (body("cell"), "cell 0: it has (a str)"),
        (body({}), "cell 0: it has (none), and needs"),
        (body(cell("attention", 8, seq_len=4096)), "cell 0: it has"),
        (body(cell("attention", 8), cell("experts", 8)), "cell 1: it has"),
        (body(cell("attention", 8), cell("attention", 8)), "cell 1: its key is there twice"),
        (body(cell("attention", 0)), "batch is 0"),
        (body(cell("attention", 8, baseline="")), "baseline is ''"),
        (body(cell("attention", 8, baseline=7)), "baseline is 7"),
        (body(cell("attention", True)), "batch is True"),
        (body(cell("attention", 8, heads=32.0)), "heads is 32.0"),  # type: ignore[arg-type]
        (body(cell("attention", 8, ours=0)), "ours_us is 0"),
        (body(cell("attention", 8, ours=float("nan"))), "ours_us is nan"),
        (body(cell("attention", 8, stock=float("inf"))), "stock_us is inf"),
        (body(cell("attention", 8, stock=10**400)), "stock_us is 1000"),
        (body(cell("attention", 8, stock="1")), "stock_us is '1'"),  # type: ignore[arg-type]
    ],
)
def test_a_file_that_is_no_table_is_told_with_what_is_wrong_there(
    tmp_path: Path, content: Any, words: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(CompatError) as caught:
        Table.read(path)
    assert all(part in str(caught.value) for part in (str(path), words, OFF_SWITCH))


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_is_no_json_is_told(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(text)
    with pytest.raises(CompatError, match="is no table"):
        Table.read(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(CompatError, match="is no table"):
            Table.read(path)


def test_a_gpus_table_lies_beside_the_kernel_under_the_gpus_name(tmp_path: Path) -> None:
    assert Table.for_gpu(tmp_path, "one", H200) is None
    path = written(tmp_path, body(cell("attention", 8)))
    assert Table.for_gpu(tmp_path, "one", H200) == Table.read(path)
    assert Table.for_gpu(tmp_path, "another", H200) is None
    assert Table.for_gpu(tmp_path, "one", "NVIDIA H100 80GB HBM3") is None
    path.write_text("{", "utf-8")
    with pytest.raises(CompatError, match="is no table"):
        Table.for_gpu(tmp_path, "one", H200)


def test_a_gpus_name_is_a_files() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert slug(" AMD Instinct(TM)/MI300X ") == "amd-instinct-tm-mi300x"


def chosen(asked: str | Path, folder: Path, kernel: str = "one", gpu: str = H200) -> Table:
    return Table.chosen(asked, kernel=kernel, op="attention", folder=folder, gpu=gpu)


def test_the_setting_says_which_table_it_is(tmp_path: Path) -> None:
    assert chosen("auto", tmp_path) == Table.everywhere()
    assert chosen("all", tmp_path) == Table.everywhere()
    own = Table.read(written(tmp_path, body(cell("attention", 8))))
    assert chosen("auto", tmp_path) == own
    assert chosen("auto", tmp_path, kernel="neighbour") == Table.everywhere()
    assert chosen("all", tmp_path) == Table.everywhere()
    named = tmp_path / "named.json"
    named.write_text(json.dumps(body(cell("attention", 1))), "utf-8")
    assert chosen(named, tmp_path) == Table.read(named) != own


def test_a_table_of_another_kernel_leaves_this_one_its_own(tmp_path: Path) -> None:
    own = Table.read(written(tmp_path, body(cell("attention", 8))))
    named = tmp_path / "named.json"
    named.write_text(json.dumps(body(cell("experts", 1), kernel="experts")), "utf-8")
    assert chosen(named, tmp_path) == own
    assert chosen(named, tmp_path / "elsewhere") == Table.everywhere()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (body(cell("attention", 8), gpu="NVIDIA L4"), "measured elsewhere"),
        (body(cell("experts", 8)), "of another op"),
    ],
)
def test_a_table_that_says_nothing_of_this_kernel_here_is_told(
    tmp_path: Path, content: Any, words: str
) -> None:
    path = tmp_path / "named.json"
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(CompatError, match=words):
        chosen(path, tmp_path)
