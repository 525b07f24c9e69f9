"""A compiled graph must not outlive the choice it was traced with: the compile key knows it."""

from __future__ import annotations

from collections.abc import Callable

from fake_vllm import FUSED_MOE, Fake

KEY = "INFERA_COMPAT_FINGERPRINT"
KEYS = """
    from vllm.fake_engine import Engine
    Engine({layers})
    from vllm import envs
    answer(key=envs.compile_factors().get("INFERA_COMPAT_FINGERPRINT"))
    """


def key(fake: Fake, layers: str = '"attention", "modular-moe"', **environ: str) -> str | None:
    found: str | None = fake.run(KEYS.format(layers=layers), **environ).answer["key"]
    return found


def test_there_is_none_where_nothing_is_bound(fake: Fake) -> None:
    assert key(fake) is None
    assert key(fake, INFERA_ATTENTION="off", INFERA_MOE="off") is None
    assert key(fake, INFERA_ATTENTION_SEAM="platform") is None


def test_it_is_equal_in_every_process_of_a_choice_and_different_between_choices(fake: Fake) -> None:
    choices = [
        {"INFERA_ATTENTION": "passthrough"},
        {"INFERA_MOE": "passthrough"},
        {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"},
        *(
            {"INFERA_ATTENTION": "passthrough", "INFERA_ATTENTION_SEAM": seam}
            for seam in ("get_attn_backend_cls", "platform", "layer", "pluggable_layer", "model")
        ),
    ]
    keys = [key(fake, **choice) for choice in choices]
    assert None not in keys
    assert len(set(keys)) == len(choices)
    assert [key(fake, PYTHONHASHSEED="7", **choice) for choice in choices[:3]] == keys[:3]


def test_it_is_one_word_of_vllms_table_and_no_setting_of_ours_is_in_it(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        Engine("attention")
        from vllm import envs
        answer(names=sorted(envs.environment_variables), values=envs.compile_factors())
        """,
        INFERA_ATTENTION="passthrough",
        INFERA_REPORT="a/secret/place.jsonl",
    )
    assert ran.answer["names"] == [KEY, "VLLM_PLUGINS", "VLLM_TARGET_DEVICE"]
    assert "secret" not in str(ran.answer["values"])


def test_there_is_none_where_binding_failed(fake: Fake) -> None:
    fake.edit("platforms/cpu.py", "@classmethod", "@staticmethod")
    fake.edit("platforms/cpu.py", "(cls, selected", "(selected")
    forced = {"INFERA_ATTENTION_SEAM": "get_attn_backend_cls"}
    assert key(fake, '"attention"', INFERA_ATTENTION="passthrough", **forced) is None


def test_there_is_none_where_binding_failed_late(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake("v0_23")
    method = fake.root / FUSED_MOE / "unquantized_fused_moe_method.py"
    with method.open("a") as text:
        text.write("\n\nUnquantizedFusedMoEMethod.register_oot(UnquantizedFusedMoEMethod)\n")
    assert key(fake, '"attention"', INFERA_MOE="passthrough") is not None
    assert key(fake, '"modular-moe"', INFERA_MOE="passthrough") is None
