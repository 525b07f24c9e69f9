"""The cells that benches measure, and their floors."""

from __future__ import annotations

import itertools

import pytest

from infera_compat.bench import cells, floors, run
from infera_compat.bench.cells import AttentionCell, ExpertsCell, Heads
from infera_compat.bench.floors import Rates

DECODER, ANY = cells.attention(8), cells.attention(None)
MOST_BYTES = 40 << 30


def test_a_release_is_measured_at_no_more_cells_than_the_issue_allows() -> None:
    assert len(DECODER) + len(ANY) <= cells.MOST


@pytest.mark.parametrize("several", [DECODER, ANY, cells.experts()])
def test_a_name_tells_a_cell_from_all_others(several: tuple[run.AnyCell, ...]) -> None:
    assert len({cell.name for cell in several}) == len(several)


def test_decoding_is_measured_at_all_batches_lengths_heads_and_blocks() -> None:
    longest = {max(cell.seq_lens) for cell in DECODER}
    assert {cell.batch for cell in DECODER} == {1, 2, 4, 8, 16, 32, 64, 256}
    assert longest == {512, 1024, 4096, 8192, 32768}
    assert {cell.heads for cell in DECODER} == {
        Heads(*x) for x in ((32, 8), (32, 4), (64, 8), (8, 1))
    }
    assert {cell.block for cell in DECODER} == {16, 64}
    assert {cell.baseline for cell in DECODER} == {"FLASH_ATTN", "TRITON_ATTN"}
    assert {cell.phase for cell in DECODER} == {"decode"}
    assert {cell.cache for cell in DECODER} == {"cold", "warm"}
    assert any(cell.ragged for cell in DECODER)


def test_every_batch_that_is_measured_is_measured_at_several_lengths_for_a_table() -> None:
    lengths: dict[tuple[object, ...], set[tuple[int, ...]]] = {}
    for cell in DECODER:
        if (cell.baseline, cell.mode, cell.cache) == ("FLASH_ATTN", "graph", "cold"):
            lengths.setdefault((cell.heads, cell.block, cell.batch), set()).add(cell.seq_lens)
    assert min(map(len, lengths.values())) >= 2


def test_prefill_is_measured_with_the_steps_of_the_issue() -> None:
    steps = {(c.batch, max(c.seq_lens), max(c.query_lens)) for c in ANY if c.phase == "prefill"}
    assert steps == {(1, 16384, 4096), (4, 4096, 4096), (16, 2048, 512)}
    (mixed, *_) = (cell for cell in ANY if cell.phase == "mixed")
    assert sum(new == 1 for new in mixed.query_lens) == 64
    assert max(mixed.query_lens) > 1


def test_no_cell_is_larger_than_a_gpu_holds() -> None:
    assert max(floors.kv_bytes(cell) for cell in (*DECODER, *ANY)) < MOST_BYTES


def test_ragged_lengths_are_drawn_alike_in_each_run_and_reach_the_longest() -> None:
    assert cells.ragged(8, 4096) == cells.ragged(8, 4096)
    lengths = [length for length, _ in cells.ragged(8, 4096)]
    assert max(lengths) == 4096
    assert len(set(lengths)) > 1
    assert min(lengths) >= 4096 // cells.SHORTEST


def test_an_experts_cell_for_each_shape_and_number_of_tokens() -> None:
    graphs = [cell for cell in cells.experts() if cell.mode == "graph"]
    assert {cell.M for cell in graphs} == {2**power for power in range(15)}
    assert len(graphs) == 5 * 15


@pytest.mark.parametrize("max_query_len", [8, None])
def test_a_rehearsal_takes_every_path_that_a_kernel_has(max_query_len: int | None) -> None:
    tiny = cells.rehearsed_attention(max_query_len)
    assert {cell.mode for cell in tiny} == {"eager", "graph"}
    phases = {"decode"} if max_query_len else {"decode", "prefill", "mixed"}
    assert {cell.phase for cell in tiny} == phases


def decode(requests: tuple[tuple[int, int], ...]) -> AttentionCell:
    return AttentionCell("decode", requests, Heads(4, 2, 8), 16, "graph", "cold", "FLASH_ATTN")


def test_decoding_moves_keys_values_queries_and_outputs_once() -> None:
    work = floors.of_attention(decode(((10, 1), (3, 1))))
    kv = 2 * 13 * 2 * 8 * 2
    queries_and_outputs = 2 * 2 * 4 * 8 * 2
    assert work.bytes == kv + queries_and_outputs
    assert work.flops == 4 * 13 * 4 * 8


def test_a_causal_prefill_counts_no_key_after_a_query() -> None:
    # Two of five tokens are new: the first sees four keys, the second five.
    assert floors.of_attention(decode(((5, 2),))).flops == 4 * (4 + 5) * 4 * 8


def test_experts_move_the_weights_of_those_that_are_hit() -> None:
    work = floors.of_experts(ExpertsCell(8, 2, 16, 4, 3, "graph"), hit=5)
    assert work.bytes == 2 * (5 * 3 * 4 * 16 + 2 * 3 * 16)
    assert work.flops == 2 * 3 * 2 * 3 * 4 * 16


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    work = floors.Work(bytes=1000, flops=1000)
    assert work.floor_us(Rates(copy=1e9, matmul=1e12)) == pytest.approx(1.0)
    assert work.floor_us(Rates(copy=1e12, matmul=1e9)) == pytest.approx(1.0)


def test_cells_of_one_layer_run_one_after_the_other() -> None:
    layers = [
        (c.heads, c.block, c.baseline, c.mode) for c in run.grouped(ANY) if hasattr(c, "heads")
    ]
    changes = sum(a != b for a, b in itertools.pairwise(layers))
    assert changes == len(set(layers)) - 1
    assert set(run.grouped(ANY)) == set(ANY)


def test_a_run_is_narrowed_by_backend_name_and_haste() -> None:
    assert {c.name for c in run.picked(DECODER, ["TRITON_ATTN"], None, False)} == {
        cell.name for cell in DECODER if cell.baseline == "TRITON_ATTN"
    }
    assert all("B64 " in cell.name for cell in run.picked(DECODER, [], "B64 ", False))
    assert len(run.picked(DECODER, [], None, True)) == -(-len(DECODER) // cells.QUICK)
