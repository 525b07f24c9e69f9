"""The whole model: a subclass in the registry binds its own modules, and looks like stock's."""

from __future__ import annotations

import pytest
from fake_vllm import Fake

# By architecture: a model of its kind.
MODELS = {
    "LlamaForCausalLM": ["attention", "attention"],
    "Qwen3ForCausalLM": ["attention", "explicit"],
    "Qwen3MoeForCausalLM": ["attention", "modular-moe"],
    "DeepseekV2ForCausalLM": ["mla", "monolithic-moe"],
}
ATTENTION = {"INFERA_ATTENTION": "passthrough", "INFERA_ATTENTION_SEAM": "model"}
MOE = {"INFERA_MOE": "passthrough", "INFERA_MOE_SEAM": "model"}
BOTH = {**ATTENTION, **MOE}
MIXED = ("attention", "modular-moe")
NOT_REACHED = (
    "its model is of none of the classes that stand in the registry for LlamaForCausalLM, "
    "Qwen3ForCausalLM, Qwen3MoeForCausalLM, DeepseekV2ForCausalLM"
)


@pytest.mark.parametrize("architecture", MODELS)
def test_every_layer_of_each_architecture_is_bound_and_fires(fake: Fake, architecture: str) -> None:
    ran = fake.serve(*MODELS[architecture], architecture=architecture, **BOTH)
    layers = ran.answer["layers"].values()
    assert [layer["seam"] for layer in layers] == ["model", "model"]
    assert all(layer["calls"]["serving"] >= 1 for layer in layers)


@pytest.mark.parametrize("architecture", MODELS)
def test_the_model_has_stocks_name_and_only_its_constructor_is_ours(
    fake: Fake, architecture: str
) -> None:
    ran = fake.run(
        f"""
        from vllm.fake_engine import Engine
        model = type(Engine("attention", architecture={architecture!r}).worker.model)
        stock = model.__mro__[1]
        answer(
            names=[model.__name__, stock.__name__],
            modules=[model.__module__, stock.__module__],
            own=sorted(set(vars(model)) - {{"__module__", "__doc__"}}),
        )
        """,
        **BOTH,
    )
    assert ran.answer["names"] == [architecture, architecture]
    ours, stock = ran.answer["modules"]
    assert ours == "infera_shims.seams.whole_model"
    assert stock.startswith("vllm.model_executor.models.")
    assert ran.answer["own"] == ["__init__"]


def test_the_registrys_entry_carries_the_release(fake: Fake) -> None:
    """vLLM keeps what it learns of a model by its class's name and file, which are ours."""
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        from vllm.model_executor.models.registry import ModelRegistry
        Engine("attention", architecture="LlamaForCausalLM")
        entry = ModelRegistry.models["LlamaForCausalLM"]
        answer(module=entry.module_name, name=entry.class_name)
        """,
        **ATTENTION,
    )
    assert ran.answer == {
        "module": "infera_shims.seams.whole_model",
        "name": "LlamaForCausalLM__0_32_0",
    }


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "LlamaForCausalLM__0_31_0", "Other__0_32_0"])
def test_no_other_name_of_the_module_is_a_model(fake: Fake, name: str) -> None:
    ran = fake.run(
        f"from infera_shims.seams import whole_model\nanswer(has=hasattr(whole_model, {name!r}))"
    )
    assert ran.answer == {"has": False}


@pytest.mark.parametrize("late", [False, True], ids=["all of it", "but for what another took"])
def test_the_registry_gets_its_entries_back(fake: Fake, late: bool) -> None:
    ran = fake.run(
        f"""
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        from vllm.model_executor.models.registry import ModelRegistry
        stock = dict(ModelRegistry.models)
        Engine("attention", architecture="LlamaForCausalLM")
        bound = dict(ModelRegistry.models)
        if {late}:
            ModelRegistry.register_model("Qwen3ForCausalLM", "theirs:Qwen3")
        plugin.current().stand_back("enough")
        after = ModelRegistry.models
        answer(
            changed=[name for name in stock if stock[name] != bound[name]],
            left=[name for name in stock if stock[name] is not after[name]],
        )
        """,
        **BOTH,
    )
    assert ran.answer["changed"] == list(MODELS)
    assert ran.answer["left"] == (["Qwen3ForCausalLM"] if late else [])


@pytest.mark.parametrize(
    ("registered", "found"),
    [
        ('"their_models:Llama"', "LlamaForCausalLM is registered as their_models:Llama"),
        ("type('Llama', (), {})", "LlamaForCausalLM is registered as _RegisteredModel("),
    ],
    ids=["by name", "as a class"],
)
def test_an_architecture_that_another_plugin_holds_is_left_to_it(
    fake: Fake, registered: str, found: str
) -> None:
    fake.write(
        "their_plugin.py",
        f"""
        def register():
            from vllm.model_executor.models.registry import ModelRegistry

            ModelRegistry.register_model("LlamaForCausalLM", {registered})
        """,
    )
    fake.entry_point("theirs", "vllm.general_plugins", "theirs", "their_plugin:register")
    ran = fake.serve(*MIXED, architecture="Qwen3MoeForCausalLM", **BOTH)
    assert {layer["seam"] for layer in ran.answer["layers"].values()} == {"model"}
    assert any(found in line for line in ran.said("INFO"))
    assert ran.said("WARNING") == []


@pytest.mark.parametrize(
    ("environ", "seams"),
    [
        ({**ATTENTION, "INFERA_MOE": "off"}, ["model", None]),
        ({**MOE, "INFERA_ATTENTION": "off"}, [None, "model"]),
        ({**ATTENTION, "INFERA_MOE": "passthrough"}, ["model", "modular_kernel"]),
        ({**MOE, "INFERA_ATTENTION": "passthrough"}, ["get_attn_backend_cls", "model"]),
    ],
    ids=["attention", "moe", "moe by its own seam", "attention by its own seams"],
)
def test_one_op_can_be_bound_by_it_without_the_other(
    fake: Fake, environ: dict[str, str], seams: list[str | None]
) -> None:
    ran = fake.serve(*MIXED, architecture="Qwen3MoeForCausalLM", **environ)
    layers = ran.answer["layers"].values()
    assert [layer["seam"] for layer in layers] == seams
    assert [layer["calls"]["serving"] for layer in layers] == [int(bool(seam)) for seam in seams]
    assert ran.answer["results"] == [[13, 19, 25]]


def test_a_model_of_another_architecture_stays_stock_with_the_reason(fake: Fake) -> None:
    ran = fake.serve("attention", "mla", "modular-moe", **BOTH)
    for layer in ran.answer["layers"].values():
        assert (layer["bound"], layer["why_not"]) == (False, NOT_REACHED)


def test_a_model_of_another_architecture_stops_the_start_under_strict(fake: Fake) -> None:
    ran = fake.run(
        "from vllm.fake_engine import Engine\nEngine('attention')", INFERA_STRICT="1", **ATTENTION
    )
    assert ran.status != 0
    assert NOT_REACHED in ran.err.strip().splitlines()[-1]


@pytest.mark.parametrize("outer", ["LlamaForCausalLM", "TinyForCausalLM"])
def test_a_model_inside_another_is_bound_once(fake: Fake, outer: str) -> None:
    """As in a multimodal model, which asks the registry for the language model that it wraps."""
    fake.edit(
        "model_executor/models/tiny.py",
        "def build(kind, prefix):\n",
        "def build(kind, prefix):\n"
        "    if kind == 'nested':\n"
        "        from vllm.config import VllmConfig\n"
        "        from vllm.model_executor.models.registry import ModelRegistry\n\n"
        "        inner = ModelRegistry.resolve_model_cls('Qwen3MoeForCausalLM')\n"
        "        return inner(vllm_config=VllmConfig(('attention', 'modular-moe')))\n",
    )
    ran = fake.serve("nested", architecture=outer, **BOTH)
    layers = ran.answer["layers"].values()
    assert [(layer["seam"], layer["calls"]["serving"]) for layer in layers] == [("model", 1)] * 2


def test_a_model_class_that_was_resolved_before_is_resolved_anew(fake: Fake) -> None:
    ran = fake.serve(
        "attention",
        architecture="LlamaForCausalLM",
        first="""
            from vllm.model_executor.models.registry import ModelRegistry
            ModelRegistry.resolve_model_cls("LlamaForCausalLM")
            """,
        **ATTENTION,
    )
    (layer,) = ran.answer["layers"].values()
    assert (layer["seam"], layer["calls"]["serving"]) == ("model", 1)


def test_a_model_class_that_was_taken_by_name_before_is_reported(fake: Fake) -> None:
    """Nothing asks the registry then, so that nothing of ours stands in that model."""
    fake.edit(
        "v1/worker/gpu_worker.py",
        "model_class = ModelRegistry.resolve_model_cls(config.architecture)",
        "from vllm.model_executor.models.llama import LlamaForCausalLM as model_class",
    )
    ran = fake.serve("attention", architecture="LlamaForCausalLM", **ATTENTION)
    (layer,) = ran.answer["layers"].values()
    assert (layer["bound"], layer["why_not"]) == (False, NOT_REACHED)


def test_a_constructors_arguments_go_through(fake: Fake) -> None:
    fake.edit(
        "model_executor/models/llama.py",
        "layer_type=LlamaDecoderLayer):",
        "layer_type=LlamaDecoderLayer, **more):\n        self.given = [prefix, layer_type, more]",
    )
    ran = fake.run(
        """
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.fake_engine import Engine
        from vllm.model_executor.models.registry import ModelRegistry
        Engine("attention", architecture="LlamaForCausalLM")
        with set_current_vllm_config(VllmConfig(())) as config:
            model = ModelRegistry.resolve_model_cls("LlamaForCausalLM")(
                vllm_config=VllmConfig(()), prefix="draft", layer_type=7, new=1
            )
        answer(given=model.given)
        """,
        **ATTENTION,
    )
    assert ran.answer["given"] == ["draft", 7, {"new": 1}]


def test_a_method_that_another_plugin_set_runs_behind_ours_and_is_put_back(fake: Fake) -> None:
    fake.edit(
        "model_executor/layers/fused_moe/unquantized_fused_moe_method.py",
        "self.experts_cls = experts_of(moe)",
        "self.experts_cls = experts_of(moe)\n        import theirs\n\n        theirs.shadow(self)",
    )
    fake.write(
        "theirs.py",
        """
        calls = []

        def shadow(method):
            stock = method.apply

            def apply(*args, **kwargs):
                calls.append(1)
                return stock(*args, **kwargs)

            method.apply = apply
        """,
    )
    ran = fake.run(
        """
        import theirs
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe", architecture="Qwen3MoeForCausalLM")
        engine.step()
        (layer,) = engine.layers().values()
        plugin.current().stand_back("enough")
        method = engine.worker.model.layers[0].routed_experts.quant_method
        left = vars(method)["apply"].__module__
        engine.step()
        answer(layer=layer, left=left, own="apply_monolithic" in vars(method), calls=theirs.calls)
        """,
        **MOE,
    )
    assert ran.answer["layer"]["shared_with"] == "theirs"
    assert ran.answer["layer"]["calls"]["serving"] == 1
    assert (ran.answer["left"], ran.answer["own"]) == ("theirs", False)
    assert ran.answer["calls"] == [1, 1, 1]
