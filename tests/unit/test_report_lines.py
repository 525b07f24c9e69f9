"""What the operator reads, and that it can be read at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import Fake

import infera_shims
from infera_compat import report
from infera_compat.ledger import Choice, Layer

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
LAYERS = ("attention", "modular-moe", "attention", "mla", "mamba")


@pytest.mark.parametrize(
    ("line", "configures_logging", "ops"),
    [
        ("main", True, BOTH),
        ("main", False, BOTH),
        ("main", False, {}),
        ("v0_22", True, {}),
        ("v0_23", True, BOTH),
    ],
)
def test_a_process_that_serves_says_two_lines_and_no_more(
    make_fake: Callable[..., Fake], line: str, configures_logging: bool, ops: dict[str, str]
) -> None:
    ran = make_fake(line, configures_logging=configures_logging).serve(*LAYERS, steps=3, **ops)
    assert [level for level, _ in ran.log] == ["INFO", "INFO"]
    start, built = ran.said("INFO")
    assert "on vLLM" in start
    assert "model built" in built
    assert ran.err == ""


def test_the_start_line_names_release_shim_contracts_seams_and_the_way_out(fake: Fake) -> None:
    start = fake.serve(*LAYERS, **BOTH).said("INFO")[0]
    (shim, *_) = infera_shims.order(None)
    assert start == (
        "infera-compat 0.1.0 on vLLM 0.32.0 (no distribution, a source tree) "
        f"(shim main, contracts {len(shim.needs)}/{len(shim.needs)}): "
        "attention: passthrough by get_attn_backend_cls, layer; "
        "moe: passthrough by modular_kernel. INFERA_VLLM_OPS_DISABLE=1 switches all of this off."
    )


def test_the_second_line_names_each_ops_layers_and_the_reason_of_the_stock_ones(fake: Fake) -> None:
    built = fake.serve(*LAYERS, **BOTH).said("INFO")[1]
    assert built.splitlines() == [
        "infera-compat: model built",
        "  attention: 2/4 layers by get_attn_backend_cls over CPU_ATTN, passthrough; "
        "1/4 layers by layer over MLA, passthrough; "
        "1/4 layers stock (MambaMixer: has its own backend, which no seam here reaches)",
        "  moe: 1/1 layers by modular_kernel over CPUUnquantizedExperts, passthrough",
    ]


def test_layers_that_another_plugin_holds_too_are_told_with_its_name() -> None:
    layers = [
        Layer("moe", str(n), "TritonExperts", "layer", "passthrough", shared_with=other)
        for n, other in enumerate(("theirs", None, "theirs"))
    ]
    built = report.model_lines([Choice("moe", "passthrough", kernel="passthrough")], layers)
    assert built.splitlines()[1] == (
        "  moe: 3/3 layers by layer over TritonExperts, passthrough; 2 of them held by theirs too"
    )


def test_an_op_without_layers_is_said_to_have_none(fake: Fake) -> None:
    assert "moe: the model has no such layers" in fake.serve("attention", **BOTH).said("INFO")[1]


def test_a_front_end_that_builds_no_model_says_nothing(fake: Fake) -> None:
    ran = fake.run(
        "import vllm.logger\nfrom vllm.plugins import load_general_plugins\nload_general_plugins()",
        **BOTH,
    )
    assert (ran.out, ran.err) == ("", "")


def test_lines_go_where_vllms_own_go(fake: Fake) -> None:
    fake.edit("logger.py", "ext://sys.stdout", "ext://sys.stderr")
    ran = fake.serve("attention", **BOTH)
    assert ran.log == []
    assert ran.err.count("INFO|infera-compat") == 2
