"""An op is bound whole or stays stock, with its originals back in place; the other op goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import FUSED_MOE, Fake

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
SERVE = """
    from vllm.fake_engine import Engine
    engine = Engine("attention", "modular-moe")
    from vllm.platforms import current_platform
    active = type(current_platform)
    answer(
        results=engine.step(2),
        layers=engine.layers(),
        ops=engine.report()["ops"],
        own="get_attn_backend_cls" in vars(active),
        wrapped=hasattr(active.get_attn_backend_cls, "__wrapped__"),
    )
    """
ATTENTION, MOE = "model.layers.0.self_attn.attn", "model.layers.1.mlp.experts"
# A selector whose cache can't be emptied: binding attention fails after the wrap is in place.
NO_CACHE = ("v1/attention/selector.py", "@cache\n", "")
SELECTOR_FIRST = (
    "fake_engine.py",
    "import vllm.logger\n",
    "import vllm.logger\nimport vllm.v1.attention.selector\n",
)


@pytest.mark.parametrize(("device", "own"), [("cpu", True), ("cuda", False)])
def test_attention_that_fails_half_way_is_undone_and_moe_stays_bound(
    make_fake: Callable[..., Fake], device: str, own: bool
) -> None:
    fake = make_fake(device=device).edit(*NO_CACHE).edit(*SELECTOR_FIRST)
    ran = fake.run(SERVE, **BOTH)
    got = ran.answer
    assert (got["own"], got["wrapped"]) == (own, False)
    assert (got["layers"][ATTENTION]["bound"], got["layers"][MOE]["bound"]) == (False, True)
    assert got["layers"][MOE]["calls"]["serving"] == 1
    assert got["results"] == [13, 19]
    assert "cache_clear" in got["layers"][ATTENTION]["why_not"]
    (warning,) = ran.said("WARNING")
    assert "binding attention failed and was undone" in warning


@pytest.fixture
def static(fake: Fake) -> Fake:
    """A platform whose get_attn_backend_cls is no classmethod."""
    fake.edit("platforms/cpu.py", "@classmethod", "@staticmethod")
    return fake.edit("platforms/cpu.py", "(cls, selected", "(selected")


NO_CLASSMETHOD = "CpuPlatform.get_attn_backend_cls is no classmethod of that class"


def test_a_platform_whose_method_is_no_classmethod_keeps_it(static: Fake) -> None:
    ran = static.run(SERVE, INFERA_ATTENTION_SEAM="get_attn_backend_cls", **BOTH)
    got = ran.answer
    assert (got["own"], got["wrapped"]) == (True, False)
    assert got["layers"][ATTENTION]["why_not"] == NO_CLASSMETHOD
    assert got["layers"][MOE]["bound"]


def test_of_two_seams_the_one_that_is_left_is_taken_and_the_line_says_so(static: Fake) -> None:
    ran = static.run(SERVE, **BOTH)
    got = ran.answer
    assert (got["own"], got["wrapped"]) == (True, False)
    assert got["layers"][ATTENTION]["seam"] == "layer"
    assert got["ops"]["attention"]["seams"] == ["layer"]
    assert got["ops"]["attention"]["not_taken"]["get_attn_backend_cls"] == NO_CLASSMETHOD
    assert (
        f"passthrough by layer; not by get_attn_backend_cls: {NO_CLASSMETHOD}"
        in (ran.said("INFO")[0])
    )
    assert got["results"] == [13, 19]


# An impl that takes no attribute: nothing of ours can be set on it.
SEALED_IMPL = """

class SealedImpl(CPUAttentionImpl):
    def __setattr__(self, name, value):
        if name != "num_heads":
            raise AttributeError("sealed")
        super().__setattr__(name, value)


class SealedBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls():
        return SealedImpl
"""


@pytest.fixture
def sealed(fake: Fake) -> Fake:
    """A vLLM with one more kind of layer, "sealed", whose impl is such."""
    with (fake.root / "v1/attention/backends/cpu_attn.py").open("a") as text:
        text.write(SEALED_IMPL)
    return fake.edit(
        "model_executor/models/tiny.py",
        "explicit = CPUAttentionBackend if",
        "if kind == 'sealed':\n"
        "        from vllm.v1.attention.backends.cpu_attn import SealedBackend\n\n"
        "        return Attention(4, 64, 0.1, prefix=prefix, attn_backend=SealedBackend)\n"
        "    explicit = CPUAttentionBackend if",
    )


def test_a_layer_that_cannot_be_bound_takes_those_before_it_back_too(sealed: Fake) -> None:
    """The layers before it already have our impl, by either seam, and run stock's code again."""
    ran = sealed.serve("attention", "explicit", "mla", "sealed", "modular-moe", **BOTH)
    *attention, moe = ran.answer["layers"].values()
    for layer in attention:
        assert (layer["bound"], layer["why_not"]) == (False, "AttributeError: sealed")
        calls = {name: n for name, n in layer["calls"].items() if n is not None}
        assert calls == {"profile": 0, "capture": 0, "serving": 0, "handed": 0}
    assert (moe["bound"], moe["calls"]["serving"]) == (True, 1)
    assert ran.answer["report"]["unknown_layers"] == []
    assert ran.answer["results"] == [[181, 229, 277]]
    (warning,) = ran.said("WARNING")
    assert "binding attention failed and was undone" in warning


def test_a_part_that_is_imported_after_the_op_fell_back_is_left_alone(sealed: Fake) -> None:
    ran = sealed.run(
        """
        import sys
        from vllm.fake_engine import Engine
        Engine("sealed")
        before = "vllm.model_executor.layers.attention.mla_attention" in sys.modules
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention
        answer(before=before, wrapped=hasattr(MLAAttention.__init__, "__wrapped__"))
        """,
        **BOTH,
    )
    assert ran.answer == {"before": False, "wrapped": False}


@pytest.mark.parametrize("late", [False, True], ids=["before us", "while vLLM imports it"])
def test_a_name_that_another_plugin_holds_is_left_to_it(
    make_fake: Callable[..., Fake], late: bool
) -> None:
    fake = make_fake("v0_23")
    fake.write(
        "their_moe.py",
        """
        def register():
            from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
                UnquantizedFusedMoEMethod,
            )

            @UnquantizedFusedMoEMethod.register_oot
            class TheirMethod(UnquantizedFusedMoEMethod):
                pass
        """,
    )
    if late:
        method = fake.root / FUSED_MOE / "unquantized_fused_moe_method.py"
        text = method.read_text()
        method.write_text(
            f"{text}\n\nclass Theirs(UnquantizedFusedMoEMethod): ...\n\n\n"
            "Theirs.__module__ = 'their_moe'\n"
            "UnquantizedFusedMoEMethod.register_oot(Theirs)\n"
        )
    else:
        fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_moe:register")
    ran = fake.run(SERVE, **BOTH)
    got = ran.answer
    why = "UnquantizedFusedMoEMethod is replaced already, by their_moe"
    assert (got["layers"][MOE]["bound"], got["layers"][MOE]["why_not"]) == (False, why)
    assert why in ran.said("WARNING")[0]
    assert got["layers"][ATTENTION]["bound"]
    assert got["results"] == [13, 19]
    assert (got["ops"]["moe"]["kernel"], got["ops"]["moe"]["seams"]) == (None, [])


def test_a_modular_kernel_that_cannot_be_hooked_leaves_moe_stock(fake: Fake) -> None:
    fake.edit(
        f"{FUSED_MOE}/modular_kernel.py",
        "class FusedMoEKernel:",
        "class Sealed(type):\n"
        "    def __setattr__(cls, name, value):\n"
        "        raise TypeError('sealed')\n\n\n"
        "class FusedMoEKernel(metaclass=Sealed):",
    )
    ran = fake.run(SERVE, **BOTH)
    got = ran.answer
    assert got["layers"][MOE]["why_not"] == "TypeError: sealed"
    assert got["layers"][ATTENTION]["bound"]
    assert got["results"] == [13, 19]


RESTORE = """
    import sys
    from vllm.fake_engine import Engine
    from vllm.platforms import current_platform
    import vllm.model_executor.layers.fused_moe.layer

    def picture():
        return {
            f"{name}:{key}": {k: repr(v) for k, v in vars(value).items()}
            for name, module in sys.modules.items() if name.startswith("vllm")
            for key, value in vars(module).items()
            if isinstance(value, type) and key != "WorkerBase"
        } | {"registry": sorted(sys.modules["vllm.model_executor.custom_op"].op_registry_oot)}

    import vllm.v1.worker.gpu_worker, vllm.model_executor.models.tiny
    from vllm.v1.attention.backends import cpu_attn
    current_platform
    before = picture()
    engine = Engine("attention", "modular-moe")
    bound = picture()
    from infera_compat import plugin
    plugin.current().stand_back("enough")
    after = picture()
    plugin.current().stand_back("enough")
    calls = engine.report()["layers"]
    engine.step()
    answer(
        changed=sorted(name for name in before if before[name] != bound.get(name)),
        left=sorted(name for name in before if before[name] != after.get(name)),
        again=picture() == after,
        silent=engine.report()["layers"] == calls,
    )
    """


@pytest.mark.parametrize(
    ("line", "device"), [("v0_22", "cpu"), ("v0_23", "cuda"), ("main", "cpu"), ("main", "cuda")]
)
def test_restoring_gives_every_class_its_own_and_its_inherited_back(
    make_fake: Callable[..., Fake], line: str, device: str
) -> None:
    fake = make_fake(line, device=device)
    got = fake.run(RESTORE, **BOTH).answer
    assert any("platforms" in name for name in got["changed"])
    assert len(got["changed"]) >= 2
    assert (got["left"], got["again"]) == ([], True)
    assert got["silent"]  # the model that lives runs stock's code again


def test_a_start_that_strict_stopped_leaves_nothing_bound(static: Fake) -> None:
    ran = static.run(
        """
        import sys
        import vllm.model_executor.layers.fused_moe.modular_kernel as kernels
        from infera_compat.errors import CompatError
        from vllm.fake_engine import Engine
        stock = kernels.FusedMoEKernel.__init__
        for _ in range(2):
            try:
                Engine("attention", "modular-moe")
            except CompatError:
                stopped = True
        from infera_compat import plugin
        left = kernels.FusedMoEKernel.__init__ is not stock
        plugin.current().stand_back("enough")
        answer(stopped=stopped, left=left, after=kernels.FusedMoEKernel.__init__ is not stock)
        """,
        INFERA_STRICT="1",
        INFERA_ATTENTION_SEAM="get_attn_backend_cls",
        **BOTH,
    )
    assert ran.answer == {"stopped": True, "left": False, "after": False}
