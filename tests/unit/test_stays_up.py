"""Nothing of ours stops a start by accident, nor a step: what we can't read stays stock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from fake_vllm import FUSED_MOE, Fake

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
SERVE = """
    from vllm.fake_engine import Engine
    engine = Engine("attention", "modular-moe")
    answer(first=engine.step(2))
    """
RIGHT = [13, 19]
SERVE_FLAT = dedent(SERVE)
LOST = """
    import infera_compat.contracts as contracts
    def lost(*args):
        raise PermissionError("not yours")
    contracts.judge = lost
"""


@pytest.mark.parametrize(("where", "ops"), [("a folder", {}), ("below a file", BOTH)])
def test_a_report_that_cannot_be_written(
    fake: Fake, tmp_path: Path, where: str, ops: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    target = tmp_path if where == "a folder" else tmp_path / "file" / "report.jsonl"
    ran = fake.run(SERVE, INFERA_REPORT=str(target), **ops)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT


@pytest.mark.parametrize("ops", [{}, BOTH], ids=["auto", "passthrough"])
def test_an_attention_layer_of_another_shape(fake: Fake, ops: dict[str, str]) -> None:
    fake.edit(
        "model_executor/layers/mamba.py",
        "static_forward_context[prefix] = self",
        "static_forward_context[prefix] = self\n"
        "        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend\n"
        "        self.attn_backend = CPUAttentionBackend",
    )
    ran = fake.run(SERVE.replace('"modular-moe"', '"modular-moe", "mamba"'), **ops)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT


@pytest.mark.parametrize("ops", [{}, BOTH], ids=["auto", "passthrough"])
def test_a_moe_method_of_somebody_elses(fake: Fake, ops: dict[str, str]) -> None:
    fake.edit(
        f"{FUSED_MOE}/routed_experts.py",
        "@PluggableLayer",
        "class UnquantizedFusedMoEMethod:\n"
        "    is_monolithic = True\n\n"
        "    def __init__(self, moe):\n"
        "        pass\n\n"
        "    def process_weights_after_loading(self, layer):\n"
        "        pass\n\n"
        "    def apply_monolithic(self, layer, x, router_logits, input_ids):\n"
        "        return [3 * token + 1 for token in x]\n\n"
        "@PluggableLayer",
    )
    ran = fake.run(SERVE, **ops)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT


def test_a_source_file_that_this_python_cannot_parse(fake: Fake) -> None:
    fake.edit(
        f"{FUSED_MOE}/runner/moe_runner.py",
        "class MoERunner(nn.Module):",
        "class MoERunner(nn.Module):\n    def = 1",
    )
    ran = fake.run(SERVE.replace(', "modular-moe"', ""), **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == [4, 6]


def test_metadata_that_is_half_gone(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake(text="")
    fake.write("vllm-0.32.0.dist-info/RECORD", "vllm/__init__.py,,\n")
    ran = fake.run(SERVE, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert "on vLLM unknown" in ran.said("INFO")[0]


def test_a_worker_module_without_the_class_we_know(fake: Fake) -> None:
    fake.edit("v1/worker/worker_base.py", "class WorkerBase:", "class OldWorkerBase:")
    fake.edit("v1/worker/gpu_worker.py", "import WorkerBase", "import OldWorkerBase as WorkerBase")
    ran = fake.run(SERVE, **BOTH)
    assert ran.answer["first"] == RIGHT
    (warning,) = ran.said("WARNING")
    assert "no WorkerBase with a constructor" in warning
    assert "stay stock" in warning


def test_a_worker_whose_step_has_moved_is_left_alone(fake: Fake) -> None:
    """No op is bound, and no method of the worker is shadowed: there is nothing to count."""
    fake.edit(
        "v1/worker/worker_base.py",
        "def execute_model(self, scheduler_output):",
        "def execute_model(self, batch, scheduler_output=None):",
    )
    fake.edit(
        "v1/worker/gpu_worker.py",
        "def execute_model(self, scheduler_output):",
        "def execute_model(self, batch, scheduler_output=None):\n        scheduler_output = batch",
    )
    ran = fake.run(SERVE, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT
    (warning,) = ran.said("WARNING")
    assert "found method vllm.v1.worker.worker_base:WorkerBase.execute_model(self, batch" in warning
    assert "attention stays stock and moe stays stock" in warning


def test_an_accident_of_ours_while_binding(fake: Fake) -> None:
    """A file that may not be read, here; strict is the operator's wish to stop."""
    ran = fake.run(LOST + SERVE, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT
    (warning,) = ran.said("WARNING")
    assert "binding the ops failed (PermissionError: not yours)" in warning
    assert fake.run(LOST + SERVE, INFERA_STRICT="1", **BOTH).status != 0


def test_an_error_that_can_t_be_printed_costs_no_start_either(fake: Fake) -> None:
    speechless = LOST.replace(
        'PermissionError("not yours")',
        'type("Speechless", (Exception,), {"__str__": lambda error: 1 / 0})',
    )
    ran = fake.run(speechless + SERVE, **BOTH)
    assert (ran.status, ran.answer["first"]) == (0, RIGHT)
    (warning,) = ran.said("WARNING")
    assert "binding the ops failed (Speechless, which can't be printed)" in warning


def test_a_module_that_is_still_being_imported_when_plugins_are_loaded(fake: Fake) -> None:
    fake.edit(
        "v1/worker/worker_base.py",
        "class WorkerBase:",
        "from vllm.plugins import load_general_plugins\n\n"
        "load_general_plugins()\n\n"
        "class WorkerBase:",
    )
    ran = fake.run(
        """
        import vllm.v1.worker.worker_base
        from vllm.fake_engine import Engine
        engine = Engine("attention")
        engine.step()
        answer(layers=engine.layers())
        """,
        **BOTH,
    )
    assert ran.said("WARNING") == []
    assert ran.answer["layers"]["model.layers.0.self_attn.attn"]["bound"]


def test_an_error_in_the_model_is_the_models_own(fake: Fake) -> None:
    ran = fake.run("from vllm.fake_engine import Engine\nEngine('attention', 5)", **BOTH)
    assert ran.status != 0
    assert ran.err.strip().splitlines()[-1].startswith("AttributeError: 'int' object")


def test_an_error_in_a_step_leaves_the_count_of_steps_and_the_phase(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("attention")
        model, engine.worker.model = engine.worker.model, lambda x: 1 / 0
        try:
            engine.step()
        except ZeroDivisionError:
            pass
        engine.worker.model = model
        engine.worker.profile()
        answer(steps=engine.report()["steps"], layers=engine.layers())
        """,
        **BOTH,
    )
    assert ran.answer["steps"] == 0
    calls = ran.answer["layers"]["model.layers.0.self_attn.attn"]["calls"]
    assert (calls["profile"], calls["serving"]) == (2, 0)


def test_a_debugger_that_has_no_module_spec(fake: Fake) -> None:
    """`python -m pdb` runs a script in a __main__ without __spec__ (Python 3.10 and 3.11)."""
    ran = fake.run("import __main__\ndel __main__.__spec__\n" + SERVE_FLAT, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT


@pytest.mark.parametrize("off", [{}, {"INFERA_VLLM_OPS_DISABLE": "1"}], ids=["on", "off"])
def test_an_import_finder_of_the_old_kind(fake: Fake, off: dict[str, str]) -> None:
    old = (
        "import sys\n"
        "Old = type('Old', (), {'find_module': lambda self, name, path=None: None})\n"
        "sys.meta_path.insert(0, Old())\n"
    )
    ran = fake.run(old + SERVE_FLAT, **BOTH, **off)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT


def test_a_kernel_without_the_experts_that_we_shadow(fake: Fake) -> None:
    """The contract tells it before anything is bound."""
    fake.edit(
        f"{FUSED_MOE}/modular_kernel.py",
        "self.fused_experts = fused_experts",
        "self.experts = fused_experts",
    )
    fake.edit(
        f"{FUSED_MOE}/modular_kernel.py", "self.impl.fused_experts.apply", "self.impl.experts.apply"
    )
    ran = fake.run(SERVE, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT
    (warning,) = ran.said("WARNING")
    assert "; moe stays stock." in warning
    assert "attribute vllm.model_executor.layers.fused_moe.modular_kernel" in warning


def test_a_classmethod_that_belongs_to_another_class(fake: Fake) -> None:
    theirs = """
import vllm.platforms
platform = type(vllm.platforms.current_platform)
class Theirs:
    mine = "theirs"
    @classmethod
    def get_attn_backend_cls(cls, *args, **kwargs):
        return STOCK(*args, **kwargs) if cls.mine else None
STOCK = platform.get_attn_backend_cls
platform.get_attn_backend_cls = Theirs.get_attn_backend_cls
"""
    ran = fake.run(theirs + SERVE_FLAT, **BOTH)
    assert ran.status == 0, ran.err.splitlines()[-1]
    assert ran.answer["first"] == RIGHT
    assert "is no classmethod of that class" in ran.said("INFO")[0]
