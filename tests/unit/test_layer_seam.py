"""Attention by the layer: its impl's methods are shadowed, on that one object, and only there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import Fake

from infera_compat.binding import Binding
from infera_compat.ledger import Choice, Ledger
from infera_compat.settings import Settings
from infera_shims.seams import layer as seam
from infera_shims.seams import shadowed

AUTO = {"INFERA_ATTENTION": "passthrough"}
FORCED = {**AUTO, "INFERA_ATTENTION_SEAM": "layer"}


class Impl:
    __module__ = "vllm.v1.attention.backends.flash_attn"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


class Made:
    def __init__(self, impl: Any = None, use_direct_call: bool = False) -> None:
        self.layer_name, self.impl = "layers.0", impl or Impl()
        self.use_direct_call = use_direct_call


class Attention(Made):
    pass


class MLAAttention(Made):
    pass


@pytest.fixture
def binding() -> Binding:
    def fell_back(choice: Choice, reason: str) -> None:
        raise AssertionError(reason)

    choice = Choice("attention", "passthrough", "layer", kernel="passthrough")
    return Binding(choice, Ledger(), Settings(), None, fell_back)


def profiled(binding: Binding) -> int:
    """How often the layer ran, out of any step."""
    calls = binding.ledger.calls().get(("attention", "layers.0"))
    return calls.profile if calls else 0


def test_whatever_vllm_passes_reaches_stock_and_what_stock_returns_comes_back(
    binding: Binding,
) -> None:
    layer = Attention()
    seam.shadow(layer, "layer", binding)
    given = layer.impl.forward(layer, "query", output=[0], a_parameter_of_tomorrow=7)
    assert given == ((layer, "query"), {"output": [0], "a_parameter_of_tomorrow": 7})


def test_a_layer_is_shadowed_once(binding: Binding) -> None:
    layer = Attention()
    for _ in range(3):
        seam.shadow(layer, "layer", binding)
    layer.impl.forward()
    assert profiled(binding) == 1


def test_the_class_of_its_impl_is_left_alone(binding: Binding) -> None:
    before = dict(vars(Impl))
    seam.shadow(Attention(), "layer", binding)
    assert dict(vars(Impl)) == before


def test_restoring_leaves_an_impl_as_it_was(binding: Binding) -> None:
    layer = Attention()
    before = dict(vars(layer.impl))
    seam.shadow(layer, "layer", binding)
    assert dict(vars(layer.impl)) != before
    binding.originals.restore()
    assert dict(vars(layer.impl)) == before


def theirs(*args: Any, **kwargs: Any) -> str:
    return "theirs"


def test_what_another_plugin_set_there_is_told_chained_and_put_back(binding: Binding) -> None:
    layer = Attention()
    layer.impl.forward = theirs
    seam.shadow(layer, "layer", binding)
    shadow = seam.of(layer.impl)
    assert shadow is not None
    assert shadowed.others(layer.impl) == __name__
    assert (layer.impl.forward(), profiled(binding)) == ("theirs", 1)
    binding.originals.restore()
    assert vars(layer.impl)["forward"] is theirs


def test_what_another_plugin_set_over_ours_is_not_taken_away(binding: Binding) -> None:
    layer = Attention()
    seam.shadow(layer, "layer", binding)
    layer.impl.forward = theirs
    binding.originals.restore()
    assert vars(layer.impl)["forward"] is theirs


def test_what_another_plugin_set_over_ours_does_not_hide_ours(binding: Binding) -> None:
    layer = Attention()
    seam.shadow(layer, "layer", binding)
    layer.impl.forward = theirs
    assert seam.of(layer.impl) is not None
    assert shadowed.others(layer.impl) == __name__
    seam.shadow(layer, "layer", binding)
    assert vars(layer.impl)["forward"] is theirs


THEIR_IMPL = type("TheirImpl", (Impl,), {"__module__": "their_plugin.attention"})


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Attention(THEIR_IMPL()), "its implementation is their_plugin.attention's, not stock"),
        (Attention(use_direct_call=True), "vLLM calls it directly on this platform"),
    ],
    ids=["another's impl", "called directly"],
)
def test_what_cannot_be_bound_is_left_alone_with_the_reason(
    binding: Binding, layer: Attention, why: str
) -> None:
    seam.shadow(layer, "layer", binding)
    assert seam.of(layer.impl) is None
    assert why in str(seam.reason_against(layer))


def test_a_layer_of_another_make_is_told_by_its_class() -> None:
    class CacheOnly:
        impl = Impl()

    why = seam.reason_against(CacheOnly())
    assert why is not None
    assert why.endswith("CacheOnly is none of Attention and MLAAttention")


@pytest.mark.parametrize(
    ("op", "mla", "told"),
    [
        ("attention", True, "one is a kernel for attention, this is MLA"),
        ("mla_decode", False, "one is a kernel for mla_decode, this is no MLA"),
        ("attention", False, None),
        ("mla_decode", True, None),
    ],
)
def test_a_kernel_of_the_other_kind_is_told(op: str, mla: bool, told: str | None) -> None:
    impl = SimpleNamespace(**{"forward_mqa": None} if mla else {})
    adapter = SimpleNamespace(kernel=SimpleNamespace(name="one", op=op))
    assert seam.other_kind(SimpleNamespace(impl=impl), adapter) == told
    assert seam.other_kind(SimpleNamespace(impl=impl), None) is None


def test_an_mla_impl_without_prefill_is_shadowed_where_it_has_a_method(binding: Binding) -> None:
    class Sparse:
        __module__ = "vllm.v1.attention.backends.mla"

        def forward_mqa(self) -> str:
            return "decoded"

    layer = MLAAttention(Sparse())
    seam.shadow(layer, "layer", binding)
    assert list(vars(layer.impl)) == ["forward_mqa", shadowed.PLACES]
    assert (layer.impl.forward_mqa(), profiled(binding)) == ("decoded", 1)


def test_together_with_the_backend_no_layer_is_bound_twice(fake: Fake) -> None:
    ran = fake.serve("attention", "explicit", "mla", "attention", **AUTO)
    layers = ran.answer["layers"].values()
    assert [(layer["seam"], layer["calls"]["serving"]) for layer in layers] == [
        ("get_attn_backend_cls", 1),
        ("layer", 1),
        ("layer", 2),
        ("get_attn_backend_cls", 1),
    ]
    assert ran.answer["report"]["ops"]["attention"]["seams"] == ["get_attn_backend_cls", "layer"]


def test_by_the_layer_alone_every_backend_stays_the_stock_class(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        layers = Engine("attention", "explicit").worker.model.layers
        answer(classes=[c.__module__ for x in layers for c in (x.attn_backend, type(x.impl))])
        """,
        **FORCED,
    )
    assert set(ran.answer["classes"]) == {"vllm.v1.attention.backends.cpu_attn"}


@pytest.fixture
def their_backend(fake: Fake) -> Fake:
    """A platform that answers with the backend of another plugin."""
    fake.write(
        "their_backend.py",
        """
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionImpl

        class TheirImpl(CPUAttentionImpl):
            pass

        class TheirBackend(CPUAttentionBackend):
            @staticmethod
            def get_impl_cls():
                return TheirImpl
        """,
    )
    return fake.edit(
        "platforms/cpu.py", "return selected_backend or", "return 'their_backend.TheirBackend' or"
    )


def test_a_layer_with_the_impl_of_another_plugin_stays_theirs(their_backend: Fake) -> None:
    ran = their_backend.serve("attention", "explicit", **AUTO)
    first, second = ran.answer["layers"].values()
    assert (first["bound"], first["why_not"]) == (
        False,
        "its implementation is their_backend's, not stock vLLM's",
    )
    assert second["bound"]


def test_where_dynamo_would_trace_into_it_a_layer_stays_stock(fake: Fake) -> None:
    fake.edit("platforms/interface.py", "return True", "return False")
    ran = fake.serve("attention", "mla", **FORCED)
    why = "vLLM calls it directly on this platform, so that Dynamo traces into it"
    layers = ran.answer["layers"].values()
    assert [(layer["bound"], layer["why_not"]) for layer in layers] == [(False, why)] * 2


@pytest.fixture
def shared(fake: Fake) -> Fake:
    """A plugin that sets a method of its own on every impl, and counts too."""
    fake.write(
        "their_plugin.py",
        """
        calls = []

        def register():
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionImpl
            stock = CPUAttentionImpl.__init__

            def __init__(self, *args, **kwargs):
                stock(self, *args, **kwargs)
                method = self.forward

                def forward(*args, **kwargs):
                    calls.append(1)
                    return method(*args, **kwargs)

                self.forward = forward

            CPUAttentionImpl.__init__ = __init__
        """,
    )
    return fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_plugin:register")


def test_a_method_that_another_plugin_set_runs_behind_ours_and_both_are_told(
    shared: Fake,
) -> None:
    ran = shared.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("attention")
        import their_plugin
        their_plugin.calls.clear()
        answer(results=engine.step(2), layers=engine.layers(), theirs=len(their_plugin.calls))
        """,
        **FORCED,
    )
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("layer", 1)
    assert (ran.answer["theirs"], ran.answer["results"]) == (1, [4, 6])
    assert layer["shared_with"] == "their_plugin"
    assert "1 of them held by their_plugin too" in ran.said("INFO")[1]


WRAPS = """
    import functools

    def register():
        from vllm.model_executor.layers.attention.attention import Attention
        stock = Attention.__init__

        @functools.wraps(stock)
        def __init__(self, *args, **kwargs):
            stock(self, *args, **kwargs)

        Attention.__init__ = __init__
    """


@pytest.mark.parametrize("first", [True, False], ids=["before us", "after us"])
def test_a_constructor_that_another_plugin_wraps_too_is_bound_all_the_same(
    fake: Fake, first: bool
) -> None:
    fake.write("their_plugin.py", WRAPS)
    if first:
        fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_plugin:register")
    else:
        fake.edit(
            "model_executor/models/tiny.py",
            "def build(",
            "import their_plugin\n\ntheir_plugin.register()\n\ndef build(",
        )
    ran = fake.serve("attention", **FORCED)
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("layer", 1)
    note = "Attention.__init__ is wrapped by their_plugin too"
    assert (note in ran.answer["report"]["ops"]["attention"]["notes"]) == first


def test_a_class_that_was_taken_by_name_before_is_bound_all_the_same(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.model_executor.models.tiny import Attention
        from vllm.model_executor.models import tiny
        from vllm.fake_engine import Engine
        engine = Engine("attention")
        assert tiny.Attention is Attention
        engine.step()
        answer(layers=engine.layers())
        """,
        **FORCED,
    )
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("layer", 1)


def kind(fake: Fake, name: str, expression: str) -> Fake:
    """Let the fake's models know one more kind of layer."""
    return fake.edit(
        "model_executor/models/tiny.py",
        "def build(kind, prefix):\n",
        "def build(kind, prefix):\n"
        f"    if kind == {name!r}:\n"
        f"        from special import Special\n\n"
        f"        return {expression}\n",
    )


SPECIAL = """
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    class Special(Attention):
        def __init__(self, prefix):
            {body}
    """


def test_a_layer_whose_own_constructor_skips_its_parents_is_reported(fake: Fake) -> None:
    body = (
        "self.layer_name, self.attn_backend = prefix, CPUAttentionBackend; "
        "self.impl, self.use_direct_call = CPUAttentionBackend.get_impl_cls()(4), False; "
        "context = get_current_vllm_config().compilation_config.static_forward_context; "
        "context[prefix] = self"
    )
    kind(fake, "special", "Special(prefix)").write("special.py", SPECIAL.format(body=body))
    ran = fake.serve("special", "attention", **FORCED)
    skipped, other = ran.answer["layers"].values()
    assert (skipped["bound"], skipped["why_not"]) == (
        False,
        "it was not made by its class's own constructor",
    )
    assert (other["bound"], ran.answer["results"]) == (True, [[12, 16, 20]])


def test_a_layer_whose_constructor_makes_its_parents_twice_is_bound_once(fake: Fake) -> None:
    body = "[Attention.__init__(self, 4, 64, 0.1, prefix=prefix) for _ in range(2)]"
    kind(fake, "special", "Special(prefix)").write("special.py", SPECIAL.format(body=body))
    ran = fake.serve("special", **AUTO)
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("get_attn_backend_cls", 1)


def test_arguments_of_a_layers_impl_go_through(fake: Fake) -> None:
    impl = "v1/attention/backends/cpu_attn.py"
    fake.edit(
        impl,
        "class CPUAttentionImpl(AttentionImpl):\n",
        "class CPUAttentionImpl(AttentionImpl):\n"
        "    def __init__(self, num_heads, sinks=None):\n"
        "        super().__init__(num_heads + sinks)\n\n",
    )
    fake.edit("model_executor/models/tiny.py", "attn_backend=explicit", "sinks=6")
    assert fake.serve("attention", **FORCED).answer["results"] == [[10, 12, 14]]


def test_without_the_first_seams_contract_the_layer_takes_all(
    make_fake: Callable[..., Fake],
) -> None:
    fake = make_fake("v0_23", device="cuda")
    fake.edit("v1/attention/selector.py", "use_mla: bool", "uses_mla: bool")
    fake.edit("v1/attention/selector.py", "(head_size, use_mla, use_sparse)", "(head_size)")
    fake.edit("platforms/cuda.py", "if attn_selector_config.use_mla:", "if False:")
    ran = fake.serve("attention", "explicit", **AUTO)
    assert [layer["seam"] for layer in ran.answer["layers"].values()] == ["layer", "layer"]
    (warning,) = ran.said("WARNING")
    assert "attention is bound otherwise" in warning
    assert "AttentionSelectorConfig.use_mla" in warning
    assert ran.answer["report"]["ops"]["attention"]["not_taken"]["get_attn_backend_cls"] == (
        "moved: vllm.v1.attention.selector:AttentionSelectorConfig.use_mla"
    )
