"""Each seam on each line of releases: its layers are bound, they fire, and they can be let go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import RECORDED, Fake

from infera_compat.settings import SEAMS

# By op and seam: a model that this seam covers, and how often a step of three tokens runs each of
# its layers (of MLA's, prefill and decode apart where the seam stands on the kernels).
COVERED = {
    ("attention", "get_attn_backend_cls"): (["attention", "attention"], [1, 1]),
    ("attention", "platform"): (["attention", "attention"], [1, 1]),
    ("attention", "layer"): (
        ["attention", "explicit", "mla", "sparse-mla", "bare-mla"],
        [1, 1, 2, 1, 2],
    ),
    ("attention", "pluggable_layer"): (["mla", "sparse-mla"], [1, 1]),
    ("attention", "model"): (["attention", "explicit", "mla"], [1, 1, 2]),
    ("moe", "modular_kernel"): (["modular-moe", "modular-moe"], [1, 1]),
    ("moe", "register_oot"): (["modular-moe", "monolithic-moe"], [1, 1]),
    ("moe", "pluggable_layer"): (["modular-moe", "monolithic-moe"], [1, 1]),
    ("moe", "model"): (["modular-moe", "monolithic-moe"], [1, 1]),
}
# An architecture that the whole-model seam knows; to the others it is one like any.
ARCHITECTURE = "DeepseekV2ForCausalLM"


def forced(op: str, seam: str) -> dict[str, str]:
    return {f"INFERA_{op.upper()}": "passthrough", f"INFERA_{op.upper()}_SEAM": seam}


def test_there_is_a_model_for_every_seam() -> None:
    assert list(COVERED) == [(op, seam) for op, seams in SEAMS.items() for seam in seams]


# Attention's seams are the same in every line, so that the oldest and the newest will do.
LINES = {"attention": ("v0_22", "main"), "moe": RECORDED}


@pytest.mark.parametrize(
    ("op", "seam", "line"), [(op, seam, line) for op, seam in COVERED for line in LINES[op]]
)
def test_its_layers_are_bound_and_fire_and_are_stocks_again_when_let_go(
    make_fake: Callable[..., Fake], op: str, seam: str, line: str
) -> None:
    # A CPU's MoE goes by the modular kernel from 0.30 on.
    device = "cuda" if seam == "modular_kernel" else "cpu"
    kinds, calls = COVERED[op, seam]
    ran = make_fake(line, device=device).run(
        f"""
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        engine = Engine(*{kinds}, architecture={ARCHITECTURE!r})
        results = [engine.step()]
        bound = engine.layers()
        plugin.current().stand_back("enough")
        results.append(engine.step())
        answer(results=results, bound=bound, after=engine.layers())
        """,
        INFERA_STRICT="1",
        **forced(op, seam),
    )
    layers = ran.answer["bound"].values()
    assert [(layer["op"], layer["seam"]) for layer in layers] == [(op, seam)] * len(kinds)
    assert [layer["calls"]["serving"] for layer in layers] == calls
    assert ran.answer["results"] == [stock(op, len(kinds))] * 2
    after = ran.answer["after"].values()
    assert [layer["calls"] for layer in after] == [layer["calls"] for layer in layers]
    assert [(layer["bound"], layer["why_not"]) for layer in after] == [(False, "enough")] * len(
        after
    )


def stock(op: str, layers: int) -> list[int]:
    """What a step of three tokens answers after so many layers of an op."""
    tokens = [0, 1, 2]
    for _ in range(layers):
        tokens = [2 * x + 4 if op == "attention" else 3 * x + 1 for x in tokens]
    return tokens


@pytest.mark.parametrize(("op", "seam"), COVERED)
def test_it_keeps_nothing_of_a_model_alive(fake: Fake, op: str, seam: str) -> None:
    """An engine that was let go must give its memory back to the next one in the process."""
    kinds, _ = COVERED[op, seam]
    ran = fake.run(
        f"""
        import gc, weakref
        from vllm.fake_engine import Engine
        engine = Engine(*{kinds}, architecture={ARCHITECTURE!r})
        parts = [part for layer in engine.worker.model.layers for part in layer.modules()]
        held = [vars(part).get("impl", vars(part).get("quant_method")) for part in parts]
        experts = [x.moe_kernel.impl.fused_experts for x in held if hasattr(x, "moe_kernel")]
        refs = [weakref.ref(x) for x in (*parts, *held, *experts) if x is not None]
        del engine, parts, held, experts
        gc.collect()
        answer(alive=[repr(ref()) for ref in refs if ref() is not None], of=len(refs))
        """,
        **forced(op, seam),
    )
    assert ran.answer["of"] >= 2 * len(kinds)
    assert ran.answer["alive"] == []


@pytest.mark.parametrize("line", ["v0_22", "v0_23", "v0_24"])
def test_before_0_30_a_cpu_has_no_modular_kernel_to_bind(
    make_fake: Callable[..., Fake], line: str
) -> None:
    ran = make_fake(line).serve("modular-moe", **forced("moe", "modular_kernel"))
    (layer,) = ran.answer["layers"].values()
    assert (layer["bound"], layer["calls"]["serving"]) == (False, 0)
    assert layer["why_not"] == (
        "its kernel is FusedMoEKernelMonolithicImpl: it routes by itself"
        if line == "v0_24"
        else "its method makes no modular kernel"
    )


@pytest.mark.parametrize(("op", "seam"), COVERED)
def test_registered_twice_and_with_two_engines_it_is_bound_once(
    fake: Fake, op: str, seam: str
) -> None:
    kinds, calls = COVERED[op, seam]
    ran = fake.run(
        f"""
        from infera_compat.plugin import register_ops
        register_ops()
        register_ops()
        from vllm.fake_engine import Engine
        Engine(*{kinds}, architecture={ARCHITECTURE!r})
        register_ops()
        engine = Engine(*{kinds}, architecture={ARCHITECTURE!r})
        engine.step()
        answer(layers=engine.layers())
        """,
        **forced(op, seam),
    )
    assert [layer["calls"]["serving"] for layer in ran.answer["layers"].values()] == calls
    assert ran.said("WARNING") == []
