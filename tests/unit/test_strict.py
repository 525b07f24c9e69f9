"""What moved: one warning and stock vLLM, or with INFERA_STRICT a start that stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import FUSED_MOE, RECORDED, Fake

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
START = "from vllm.fake_engine import Engine\nEngine({layers}).step()\nanswer(started=True)"


def move(fake: Fake, op: str) -> Fake:
    """Move one thing that `op` needs, so that vLLM itself still runs."""
    if op == "moe":
        module = fake.root / FUSED_MOE / "modular_kernel.py"
        text = module.read_text().replace("KernelModularImpl", "KernelImpl")
        module.write_text(text)
        return fake
    if op == "worker":
        return fake.edit(
            "config/compilation.py",
            "static_forward_context: dict = field",
            "forward_context: dict = field",
        ).edit(
            "config/compilation.py",
            "class CompilationConfig:",
            "class CompilationConfig:\n"
            "    def __getattr__(self, name):\n"
            "        if name == 'static_forward_context':\n"
            "            return self.forward_context\n"
            "        raise AttributeError(name)\n",
        )
    return fake.edit(
        "platforms/interface.py",
        "selected_backend, attn_selector_config",
        "attn_selector_config, selected_backend",
    )


EXPECTED = {
    "attention": (
        "found classmethod vllm.platforms.interface:Platform.get_attn_backend_cls(cls, "
        "attn_selector_config, selected_backend, num_heads=None) at platforms/interface.py:7",
        "expected classmethod vllm.platforms.interface:Platform.get_attn_backend_cls(cls, "
        "selected_backend, attn_selector_config, num_heads)",
    ),
    "moe": ("found nothing of that name", "modular_kernel:FusedMoEKernelModularImpl"),
    "worker": ("found nothing of that name", "CompilationConfig.static_forward_context"),
}
FATE = {
    "attention": "attention is bound otherwise",
    "moe": "moe stays stock",
    "worker": "attention stays stock and moe stays stock",
}


@pytest.mark.parametrize(
    ("line", "op"), [*(("main", op) for op in EXPECTED), ("v0_22", "moe"), ("v0_23", "attention")]
)
def test_a_move_is_one_warning_with_found_expected_and_what_to_do(
    make_fake: Callable[..., Fake], line: str, op: str
) -> None:
    # On a CPU, 0.22's MoE would not go by the modular kernel, which moves here.
    fake = make_fake(line, device="cpu" if line == "main" else "cuda")
    ran = move(fake, op).serve("attention", "modular-moe", **BOTH)
    (warning,) = ran.said("WARNING")
    for part in EXPECTED[op]:
        assert part in warning
    assert f"vLLM {RECORDED[line]}" in warning
    assert f"shim {line}" in warning
    assert f"; {FATE[op]}. Found" in warning
    assert "Upgrade infera-compat, or install a vLLM that it lists." in warning
    assert "INFERA_VLLM_OPS_DISABLE=1" in warning
    bound = {layer["op"]: layer["bound"] for layer in ran.answer["layers"].values()}
    # A worker that has moved is left alone, so nothing tells its layers.
    known = {} if op == "worker" else {"attention": True, "moe": op != "moe"}
    assert bound == known
    assert ran.answer["results"] == [[13, 19, 25]]


@pytest.mark.parametrize(
    ("op", "asked"), [("attention", {}), ("attention", BOTH), ("moe", BOTH), ("worker", {})]
)
def test_with_strict_a_move_stops_the_start(fake: Fake, op: str, asked: dict[str, str]) -> None:
    ran = move(fake, op).run(START.format(layers='"attention"'), INFERA_STRICT="1", **asked)
    assert ran.status != 0
    last = ran.err.strip().splitlines()[-1]
    assert all(part in last for part in (*EXPECTED[op], "INFERA_VLLM_OPS_DISABLE=1"))


def test_a_move_in_a_seam_that_is_not_taken_is_no_warning_and_stops_nothing(fake: Fake) -> None:
    fake.edit("model_executor/custom_op.py", "_decorated_layer_cls=None", "layer_cls=None")
    fake.edit("model_executor/custom_op.py", "if _decorated_layer_cls is None", "if not layer_cls")
    fake.edit("model_executor/custom_op.py", "key, _decorated_layer_cls)", "key, layer_cls)")
    ran = fake.serve("attention", "modular-moe", INFERA_STRICT="1", **BOTH)
    assert ran.said("WARNING") == []
    assert all(layer["bound"] for layer in ran.answer["layers"].values())


def test_a_move_in_a_seam_that_is_forced_is_warned_of_and_stops_the_start(fake: Fake) -> None:
    fake.edit("model_executor/models/registry.py", "self, model_arch, model_cls", "self, arch, cls")
    fake.edit("model_executor/models/registry.py", "isinstance(model_cls, str)", "True")
    forced = {**BOTH, "INFERA_MOE_SEAM": "model"}
    ran = fake.serve("attention", "modular-moe", **forced)
    (warning,) = ran.said("WARNING")
    assert "; moe stays stock. Found" in warning
    assert "_ModelRegistry.register_model(self, arch, cls)" in warning
    attention, moe = ran.answer["layers"].values()
    assert (attention["bound"], moe["bound"]) == (True, False)
    assert fake.run(START.format(layers='"attention"'), INFERA_STRICT="1", **forced).status != 0


def test_the_kill_switch_starts_what_strict_would_stop(fake: Fake) -> None:
    ran = move(fake, "attention").run(
        START.format(layers='"attention"'), INFERA_STRICT="1", INFERA_VLLM_OPS_DISABLE="1", **BOTH
    )
    assert ran.answer["started"]


@pytest.mark.parametrize("layer", ["cache-only", "mamba", "monolithic-moe"])
def test_with_strict_passthrough_must_cover_every_layer(fake: Fake, layer: str) -> None:
    start = START.format(layers=f'"attention", "modular-moe", {layer!r}')
    assert fake.run(start, **BOTH).answer["started"]
    ran = fake.run(start, INFERA_STRICT="1", **BOTH)
    assert ran.status != 0
    last = ran.err.strip().splitlines()[-1]
    assert "does not cover every layer" in last
    assert "model.layers.2." in last


def test_with_strict_an_op_that_is_auto_or_off_may_stay_stock(fake: Fake) -> None:
    start = START.format(layers='"attention", "monolithic-moe"')
    for moe in ("auto", "off"):
        ran = fake.run(start, INFERA_STRICT="1", INFERA_ATTENTION="passthrough", INFERA_MOE=moe)
        assert ran.answer["started"]


def test_with_strict_all_covered_starts(fake: Fake) -> None:
    ran = fake.run(START.format(layers='"attention", "modular-moe"'), INFERA_STRICT="1", **BOTH)
    assert ran.answer["started"]


def test_with_strict_a_binding_that_fails_stops_the_start(fake: Fake) -> None:
    fake.edit("platforms/cpu.py", "@classmethod", "@staticmethod")
    fake.edit("platforms/cpu.py", "(cls, selected", "(selected")
    start = START.format(layers='"attention"')
    forced = {**BOTH, "INFERA_ATTENTION_SEAM": "get_attn_backend_cls"}
    assert fake.run(start, **forced).answer["started"]
    ran = fake.run(start, INFERA_STRICT="1", **forced)
    last = ran.err.strip().splitlines()[-1]
    assert "passthrough was asked for attention and can't be bound" in last
    assert "no classmethod" in last


def test_a_second_start_after_a_stop_is_stopped_too(fake: Fake) -> None:
    ran = move(fake, "attention").run(
        """
        from infera_compat.errors import CompatError
        from vllm.fake_engine import Engine
        stops = 0
        for _ in range(3):
            try:
                Engine("attention")
            except CompatError:
                stops += 1
        answer(stops=stops)
        """,
        INFERA_STRICT="1",
        **BOTH,
    )
    assert ran.answer["stops"] == 3


def test_with_strict_an_op_that_is_off_stops_nothing(fake: Fake) -> None:
    off = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "off", "INFERA_STRICT": "1"}
    ran = move(fake, "moe").serve("attention", **off)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.said("WARNING") == []
