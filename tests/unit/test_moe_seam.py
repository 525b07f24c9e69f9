"""What stands in a MoE layer looks to vLLM like what stood there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_vllm import Fake

BOUND = {"INFERA_MOE": "passthrough"}


def test_what_the_stock_experts_return_is_returned(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe")
        engine.step()
        kernel = engine.worker.model.layers[0].routed_experts.quant_method.moe_kernel
        answer(returned=kernel.returned, own=sorted(vars(kernel.impl.fused_experts)))
        """,
        **BOUND,
    )
    assert ran.answer == {"returned": "what apply returns", "own": ["apply", "infera_shadows"]}


def test_the_replaced_method_keeps_its_names(make_fake: Callable[..., Fake]) -> None:
    ran = make_fake("v0_23").run(
        """
        from vllm.fake_engine import Engine
        from vllm.model_executor.custom_op import op_registry, op_registry_oot
        method = Engine("modular-moe").worker.model.layers[0].quant_method
        answer(
            class_name=type(method).__name__,
            op_name=type(method).name,
            stock=op_registry["unquantized_fused_moe"].name,
            replaced=list(op_registry_oot),
        )
        """,
        **BOUND,
    )
    assert ran.answer == {
        "class_name": "UnquantizedFusedMoEMethod",
        "op_name": "unquantized_fused_moe",
        "stock": "unquantized_fused_moe",
        "replaced": ["UnquantizedFusedMoEMethod"],
    }


def test_a_dense_model_imports_no_moe_kernel(fake: Fake) -> None:
    ran = fake.run(
        """
        import sys
        from vllm.fake_engine import Engine
        Engine("attention")
        answer(moe=[name for name in sys.modules if name.startswith("vllm") and "moe" in name])
        """,
        **BOUND,
    )
    assert ran.answer["moe"] == []


FIFTEEN = (
    "output=[0, 0], hidden_states=[0, 1], w1=1, w2=1, topk_weights=None, topk_ids=None, "
    "activation='silu', global_num_experts=4, expert_map=None, a1q_scale=None, a2_scale=None, "
    "workspace13=None, workspace2=None, expert_tokens_meta=None, apply_router_weight_on_input=True"
)


@pytest.mark.parametrize(
    ("call", "passed"),
    [
        (FIFTEEN, {}),
        (", ".join(part.split("=")[1] for part in FIFTEEN.replace("[0, ", "[0,").split(", ")), {}),
        (f"{FIFTEEN}, new=7", {"new": 7}),
    ],
    ids=["by name", "by place", "with one of tomorrow"],
)
def test_what_is_passed_to_the_experts_reaches_stock(
    fake: Fake, call: str, passed: dict[str, int]
) -> None:
    ran = fake.run(
        f"""
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe")
        experts = engine.worker.model.layers[0].routed_experts.quant_method.moe_kernel.impl
        experts = experts.fused_experts
        given = []
        experts.apply.stock = lambda **named: given.append(named)
        experts.apply({call})
        (named,) = given
        answer(first=named.pop("hidden_states"), of=len(named), new=named.get("new"))
        """,
        **BOUND,
    )
    assert ran.answer == {"first": [0, 1], "of": 14 + len(passed), "new": passed.get("new")}


def test_an_apply_that_another_plugin_set_runs_behind_ours_and_is_put_back(fake: Fake) -> None:
    fake.edit(
        "model_executor/layers/fused_moe/modular_kernel.py",
        "modular = isinstance(",
        "import theirs\n\n        theirs.shadow(fused_experts)\n        modular = isinstance(",
    )
    fake.write(
        "theirs.py",
        """
        calls = []

        def shadow(experts):
            stock = experts.apply

            def apply(*args, **kwargs):
                calls.append(1)
                return stock(*args, **kwargs)

            experts.apply = apply
        """,
    )
    ran = fake.run(
        """
        import theirs
        from infera_compat import plugin
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe")
        theirs.calls.clear()
        engine.step()
        (layer,) = engine.layers().values()
        plugin.current().stand_back("enough")
        method = engine.worker.model.layers[0].routed_experts.quant_method
        left = method.moe_kernel.impl.fused_experts.apply
        answer(layer=layer, left=left.__module__, calls=theirs.calls)
        """,
        **BOUND,
    )
    assert ran.answer["layer"]["shared_with"] == "theirs"
    assert ran.answer["layer"]["calls"]["serving"] == 1
    assert (ran.answer["left"], ran.answer["calls"]) == ("theirs", [1])


def test_experts_that_are_put_into_a_second_kernel_are_counted_once(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("modular-moe")
        from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel
        method = engine.worker.model.layers[0].routed_experts.quant_method
        method.moe_kernel = FusedMoEKernel("modular", method.moe_kernel.impl.fused_experts)
        engine.step()
        answer(layers=engine.layers())
        """,
        **BOUND,
    )
    assert ran.answer["layers"]["model.layers.0.mlp.experts"]["calls"]["serving"] == 1
