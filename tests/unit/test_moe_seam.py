"""What stands in a MoE layer looks to vLLM like what stood there."""

from __future__ import annotations

from collections.abc import Callable

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
    assert ran.answer == {"returned": "what apply returns", "own": ["apply"]}


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
