"""What the adapters believe of stock's attention metadata, held against the installed source."""

from __future__ import annotations

import ast
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infera_compat.errors import CompatError, Refused
from infera_compat.kernels.attention.contract import AttentionSpec
from infera_compat.kernels.attention.reference import ReferenceAttention
from infera_compat.kernels.kernel import Reason
from infera_compat.kernels.table import Row, Table
from infera_compat.ledger import Layer, Ledger
from infera_compat.release import Release
from infera_compat.settings import Settings
from infera_shims.adapters import adapter, metadata
from infera_shims.adapters.attention import AttentionAdapter, rows_of
from infera_shims.seams.kv_views import views
from infera_shims.seams.kv_views.regimes import KV_HALVES

# Fields that say something of the result which no kernel here is told of: set, a step is stock's.
MEANT = {
    "dynamic_causal",
    "encoder_cache",
    "use_cascade",
    "common_prefix_len",
    "cu_prefix_query_lens",
    "prefix_kv_lens",
    "suffix_kv_lens",
    "max_dcp_context_kv_len",
    "dcp_context_kv_lens",
    "mm_prefix_range",
    "mm_prefix_range_tensor",
    "mm_prefix_query_range_tensor",
    "rswa_prefix_lens",
    "rswa_window",
    "rswa_window_tensor",
    "use_sdpa_prefill",
    "sdpa_attn_masks",
    "sdpa_start_loc",
}


def fields_of(release: Release, symbol: str) -> list[str]:
    """The fields of a metadata class, from the installed source: nothing is imported."""
    module, _, name = symbol.partition(":")
    file = release.root.parent / f"{module.replace('.', '/')}.py"
    if not file.is_file():
        file = release.root / f"{module.removeprefix('vllm.').replace('.', '/')}.py"
    found = next(
        node
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return [
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


@pytest.mark.parametrize("backend", metadata.KNOWN)
def test_every_field_of_this_release_is_read_ignored_or_meant(
    release: Release, backend: str
) -> None:
    known = metadata.KNOWN[backend]
    if release.version is not None and release.version.minor < int(known.first.split(".")[1]):
        pytest.skip(f"{backend} is taken from {known.first} on")
    found = set(fields_of(release, known.upstream))
    assert metadata.READ - {"causal"} <= found
    assert found - metadata.READ - known.ignored - set(known.same_as) <= MEANT


@dataclasses.dataclass
class Step:
    """Metadata of a release that nobody has seen."""

    max_query_len: int = 1
    scheduler_metadata: Any = None
    sliding_window: Any = None
    something_new: Any = None


class Impl:
    sliding_window = (7, 0)


@pytest.mark.parametrize(
    ("step", "stray"),
    [
        (Step(), None),
        (Step(scheduler_metadata=object()), None),
        (Step(sliding_window=(7, 0)), None),
        (Step(sliding_window=(9, 0)), "sliding_window"),
        (Step(something_new=1), "something_new"),
        (Step(something_new=0), None),
        (Step(something_new=False), None),
        (Step(something_new=True), "something_new"),
        (Step(something_new=0.0), "something_new"),
        (Step(something_new=[]), "something_new"),
    ],
)
def test_a_field_that_is_not_understood_must_be_unset(step: Step, stray: str | None) -> None:
    assert metadata.stray(step, "FLASH_ATTN", Impl()) == stray


def test_a_gate_says_what_it_found() -> None:
    with pytest.raises(Refused, match="found sparse MLA, expected MLA over all tokens"):
        adapter.check(iter([adapter.Gate(False, "sparse MLA", "MLA over all tokens")]))


@pytest.mark.parametrize(
    ("thing", "there"),
    [({}, False), ({"x": None}, False), ({"x": False}, False), ({"x": 0.5}, True)],
)
def test_a_feature_that_a_release_does_not_know_is_not_in_use(
    thing: dict[str, Any], there: bool
) -> None:
    assert adapter.has(type("Thing", (), thing)(), "x") is there


class Picky(ReferenceAttention):
    """Takes no window."""

    def supports(self, spec: AttentionSpec) -> Reason | None:
        return Reason("a window", "none") if spec.window else None


def test_a_model_that_is_built_later_starts_anew() -> None:
    ours = AttentionAdapter(Picky(), Ledger())
    spec = AttentionSpec(2, 1, 64, torch.float32, torch.float32, device="cpu")
    ours.begin("a config")
    ours.admit("layers.0", spec)
    ours.admit("layers.1", spec)
    ours.regimes["layers.0"] = KV_HALVES
    with pytest.raises(Refused, match="found a window"):
        ours.admit("layers.0", dataclasses.replace(spec, window=8))
    assert list(ours.specs) == ["layers.1"]
    ours.begin("another")
    assert (ours.specs, ours.regimes, ours.rows, ours.config) == ({}, {}, {}, "another")


@pytest.fixture
def measured() -> AttentionAdapter:
    """An adapter of a kernel that was chosen by a table of one cell, over FLASH_ATTN."""
    row = Row((8,), (True,))
    table = Table(
        "reference_attention", "cpu", {}, "attention", {("FLASH_ATTN", 2, 1, 64, 16): row}
    )
    ours = AttentionAdapter(ReferenceAttention(), Ledger(), measured=table)
    device = SimpleNamespace(device="cpu")
    ours.begin(SimpleNamespace(device_config=device))
    spec = AttentionSpec(2, 1, 64, torch.float32, torch.float32, device="cpu")
    for name, block_size in {"none yet": None, "measured": 16, "another": 64}.items():
        ours.admit(name, dataclasses.replace(spec, block_size=block_size))
    ours.ledger.survey(
        Layer("attention", name, "FLASH_ATTN", "layer", "reference_attention")
        for name in ours.specs
    )
    return ours


def test_an_automatic_choice_takes_no_layer_that_it_would_always_leave(
    measured: AttentionAdapter,
) -> None:
    measured.check_measured("none yet", "FLASH_ATTN")
    measured.check_measured("measured", "FLASH_ATTN")
    for name, over in (("measured", "TRITON_ATTN"), ("another", "FLASH_ATTN")):
        with pytest.raises(Refused, match=f"did not measure faster than {over} at its sizes"):
            measured.check_measured(name, over)
    measured.drop_unmeasured()
    assert list(measured.specs) == ["none yet", "measured"]
    assert "at its sizes" in str(measured.ledger.layers["attention", "another"].why_not)
    measured.measured = None  # asked for by name: it takes what it can
    measured.check_measured("measured", "TRITON_ATTN")


def test_its_table_decides_each_step_over_the_stock_code_of_the_layer(
    measured: AttentionAdapter,
) -> None:
    measured.choose(Settings(), "a distribution 1.0")
    assert measured.table is measured.measured
    assert [measured.prefers("measured", size) for size in (1, 8, 9)] == [True, True, False]
    measured.rows.clear()
    measured.ledger.layers["attention", "measured"].over = "TRITON_ATTN"
    assert not measured.prefers("measured", 8)


def test_a_worker_with_another_gpu_is_told(measured: AttentionAdapter) -> None:
    measured.measured = dataclasses.replace(measured.table, gpu="NVIDIA H200", always=False)
    with pytest.raises(CompatError, match="was chosen for another GPU"):
        measured.choose(Settings(), "a distribution 1.0")


def test_a_kernel_that_fails_before_anything_is_served_stops_the_start() -> None:
    class Fails(ReferenceAttention):
        def supports(self, spec: AttentionSpec) -> Reason | None:
            raise ValueError("a mistake")

    ours = AttentionAdapter(Fails(), Ledger())
    spec = AttentionSpec(2, 1, 64, torch.float32, torch.float32, device="cpu")
    with pytest.raises(CompatError, match=r"reference_attention.supports failed.*a mistake"):
        ours.admit("layers.0", spec)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: torch.zeros(2, 16, 3, 64, dtype=torch.float16), None),
        (lambda: torch.zeros(2, 16, 3, 128, dtype=torch.float16)[..., ::2], "channels of a cache"),
        (lambda: torch.zeros(2, 16, 3, 65, dtype=torch.float16)[..., :64], "130"),
        (lambda: torch.zeros(2, 16, 3, 72, dtype=torch.float16)[..., 1:65], "rows of a cache"),
        (lambda: torch.zeros(2, 16, 3, 65, dtype=torch.float16), None),
    ],
)
def test_rows_of_a_cache_are_as_the_contract_promises(make: Any, found: str | None) -> None:
    gates = rows_of(views.Views(make(), None))
    if found is None:
        adapter.check(gates)
    else:
        with pytest.raises(Refused, match=found):
            adapter.check(gates)
