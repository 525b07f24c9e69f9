"""The whole way on a fake vLLM: entry point, import hooks, worker, survey, steps, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_vllm import RECORDED, Fake

BOTH = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough"}
LAYERS = ("attention", "modular-moe", "attention")


def expected_moe(line: str, device: str) -> tuple[str, str]:
    if device == "cuda":
        return "modular_kernel", "TritonExperts"
    return {
        "main": ("modular_kernel", "CPUUnquantizedExperts"),
        "v0_24": ("register_oot", "CPUUnquantizedExperts"),
    }.get(line, ("register_oot", "UnquantizedFusedMoEMethod"))


@pytest.mark.parametrize("line", RECORDED)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_layer_is_bound_and_fires_and_the_results_are_stocks(
    make_fake: Callable[..., Fake], line: str, device: str
) -> None:
    fake = make_fake(line, device=device)
    stock = fake.run(
        f"from vllm.fake_engine import Engine\nanswer(results=[Engine(*{LAYERS}).step()] * 2)",
        path=fake.without_plugin(),
    )
    ran = fake.serve(*LAYERS, steps=2, **BOTH)
    assert ran.answer["results"] == stock.answer["results"]
    assert ran.answer["report"]["shim"] == line
    assert ran.answer["report"]["steps"] == 2
    seam, over = expected_moe(line, device)
    attention = {"cpu": "CPU_ATTN", "cuda": "FLASH_ATTN"}[device]
    layers = ran.answer["layers"]
    assert [(name, x["op"], x["over"], x["seam"], x["kernel"]) for name, x in layers.items()] == [
        (
            "model.layers.0.self_attn.attn",
            "attention",
            attention,
            "get_attn_backend_cls",
            "passthrough",
        ),
        ("model.layers.1.mlp.experts", "moe", over, seam, "passthrough"),
        (
            "model.layers.2.self_attn.attn",
            "attention",
            attention,
            "get_attn_backend_cls",
            "passthrough",
        ),
    ]
    for layer in layers.values():
        assert layer["bound"]
        assert layer["calls"] == {
            "profile": 1,
            "capture": int(device == "cuda"),
            "serving": 2,
            "replayed": None,
            "handed": 0,
        }
    assert ran.answer["report"]["unknown_layers"] == []


@pytest.mark.parametrize("line", RECORDED)
def test_nothing_set_binds_nothing_and_says_why(make_fake: Callable[..., Fake], line: str) -> None:
    ran = make_fake(line).serve(*LAYERS)
    for layer in ran.answer["layers"].values():
        assert (layer["bound"], layer["seam"]) == (False, None)
        assert layer["why_not"] == "auto: no kernel is chosen on a cpu"
        assert layer["calls"]["serving"] == 0
    start, _ = ran.said("INFO")
    assert start.count("stock (auto: no kernel is chosen on a cpu)") == 2


def test_one_op_can_be_bound_without_the_other(fake: Fake) -> None:
    ran = fake.serve(*LAYERS, INFERA_MOE="passthrough", INFERA_ATTENTION="off")
    bound = {name: layer["why_not"] for name, layer in ran.answer["layers"].items()}
    assert list(bound.values()) == ["INFERA_ATTENTION=off", None, "INFERA_ATTENTION=off"]


def test_layers_that_no_seam_reaches_are_listed_with_the_reason(fake: Fake) -> None:
    ran = fake.serve("attention", "cache-only", "mamba", "monolithic-moe", **BOTH)
    why = {name: layer["why_not"] for name, layer in ran.answer["layers"].items()}
    assert why == {
        "model.layers.0.self_attn.attn": None,
        "model.layers.1.self_attn.attn": "CacheOnlyAttentionLayer is none of Attention and "
        "MLAAttention",
        "model.layers.2.mixer": "has its own backend, which no seam here reaches",
        "model.layers.3.mlp.experts": "its kernel is FusedMoEKernelMonolithicImpl: it routes by "
        "itself",
    }


@pytest.mark.parametrize("seam", ["get_attn_backend_cls", "platform"])
def test_layers_that_do_not_ask_for_a_backend_are_listed_with_the_reason(
    fake: Fake, seam: str
) -> None:
    ran = fake.serve(
        "attention", "mla", "explicit", "cache-only", INFERA_ATTENTION_SEAM=seam, **BOTH
    )
    assert [layer["why_not"] for layer in ran.answer["layers"].values()] == [
        None,
        f"MLA: {seam} does not take it",
        "it did not ask the platform for its backend",
        "it did not ask the platform for its backend",
    ]


def test_a_bound_layer_that_never_runs_is_told_of_once(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("attention", "attention")
        engine.worker.model.layers.pop()
        for _ in range(40):
            engine.step()
        """,
        **BOTH,
    )
    (warning,) = ran.said("WARNING")
    assert "1 layers are bound and did not run in the first 16 steps" in warning
    assert "model.layers.1.self_attn.attn" in warning


def test_a_step_without_tokens_serves_nothing(fake: Fake) -> None:
    ran = fake.serve(
        "attention", steps=0, more="engine.step(0)\nengine.step(2)\nengine.step(0)", **BOTH
    )
    assert ran.answer["report"]["steps"] == 1


def test_what_runs_while_tokens_are_sampled_is_counted_as_serving(fake: Fake) -> None:
    ran = fake.serve("attention", steps=0, more="engine.step(2, grammar='draft')", **BOTH)
    assert ran.answer["layers"]["model.layers.0.self_attn.attn"]["calls"]["serving"] == 2


def test_what_runs_between_steps_is_not_serving(fake: Fake) -> None:
    ran = fake.serve("attention", more="engine.worker.profile()", **BOTH)
    calls = ran.answer["layers"]["model.layers.0.self_attn.attn"]["calls"]
    assert (calls["serving"], calls["profile"]) == (1, 2)


def test_a_second_engine_in_one_process_is_bound_and_counted_anew(fake: Fake) -> None:
    ran = fake.serve(
        *LAYERS,
        steps=3,
        more="engine = Engine('attention', 'modular-moe')\nengine.step()",
        **BOTH,
    )
    assert ran.answer["report"]["steps"] == 1
    assert [layer["calls"]["serving"] for layer in ran.answer["layers"].values()] == [1, 1]
    assert all(layer["bound"] for layer in ran.answer["layers"].values())
    assert len([line for line in ran.said("INFO") if "on vLLM" in line]) == 1
    assert len([line for line in ran.said("INFO") if "model built" in line]) == 2


@pytest.mark.parametrize("line", RECORDED)
def test_modules_that_were_imported_before_are_bound_all_the_same(
    make_fake: Callable[..., Fake], line: str
) -> None:
    ran = make_fake(line).run(
        f"""
        import vllm.v1.worker.worker_base
        import vllm.model_executor.layers.fused_moe.layer
        import vllm.model_executor.models.tiny
        from vllm.fake_engine import Engine
        engine = Engine(*{LAYERS})
        engine.step()
        answer(layers=engine.layers())
        """,
        **BOTH,
    )
    for layer in ran.answer["layers"].values():
        assert layer["bound"]
        assert layer["calls"]["serving"] == 1


def test_a_class_taken_by_name_before_is_bound_all_the_same(fake: Fake) -> None:
    ran = fake.run(
        """
        from vllm.v1.worker.gpu_worker import Worker
        from vllm.v1.worker.worker_base import WorkerBase
        from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel
        from vllm.v1.attention.selector import get_attn_backend
        from vllm.fake_engine import Engine
        engine = Engine("attention", "modular-moe")
        engine.step()
        answer(layers=engine.layers())
        """,
        **BOTH,
    )
    assert [layer["calls"]["serving"] for layer in ran.answer["layers"].values()] == [1, 1]


def test_a_worker_that_inherits_is_followed_as_well(fake: Fake) -> None:
    fake.write(
        "vllm/v1/worker/cpu_worker.py",
        """
        from vllm.v1.worker.gpu_worker import Worker

        class CPUWorker(Worker):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)

            def load_model(self, *, load_dummy_weights=False):
                return super().load_model(load_dummy_weights=load_dummy_weights)
        """,
    )
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        engine = Engine("attention", worker="vllm.v1.worker.cpu_worker.CPUWorker", rank=3)
        engine.step()
        answer(layers=engine.layers(), rank=engine.report()["rank"])
        """,
        **BOTH,
    )
    assert ran.answer["rank"] == 3
    assert ran.answer["layers"]["model.layers.0.self_attn.attn"]["calls"]["serving"] == 1


def test_replays_are_counted_from_the_first_served_step_on(
    make_fake: Callable[..., Fake], tmp_path: Path
) -> None:
    ran = make_fake(device="cuda").serve(
        *LAYERS,
        steps=1,
        # Replaying a graph runs the counters' own steps and no Python of a layer.
        more="import torch\ntorch.created[-1][0:1].add_(5)",
        INFERA_REPORT=str(tmp_path / "report.jsonl"),
        **BOTH,
    )
    calls = [layer["calls"] for layer in ran.answer["layers"].values()]
    assert [call["capture"] for call in calls] == [1, 1, 1]
    assert [call["replayed"] for call in calls] == [5, 0, 0]


def test_three_events_a_process_reach_the_report(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report.jsonl"
    fake.serve(*LAYERS, steps=3, INFERA_REPORT=str(file), **BOTH)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["event"] for event in events] == ["registered", "model_built", "served"]
    registered, built, served = events
    assert (registered["rank"], registered["vllm"], registered["contracts"]) == (None, None, None)
    assert (built["rank"], built["role"], built["vllm"], built["shim"]) == (
        0,
        "worker",
        "0.32.0",
        "main",
    )
    assert [layer["calls"]["serving"] for layer in served["layers"]] == [1, 1, 1]
    assert len({event["pid"] for event in events}) == 1


def test_what_is_passed_to_the_workers_own_methods_reaches_them(fake: Fake) -> None:
    worker = "v1/worker/gpu_worker.py"
    fake.edit(worker, "load_dummy_weights=False):", "load_dummy_weights=False, **more):")
    fake.edit(worker, "def execute_model(self, scheduler_output):", "def execute_model(*given):")
    fake.edit(worker, "return self.model(list(range(scheduler_output", "return (given[2:], [0]")
    fake.edit(worker, ".total_num_scheduled_tokens)))", ")")
    fake.edit(worker, "return self.model([9])", "return more")
    fake.edit(worker, "sample_tokens(self, grammar_output)", "sample_tokens(self, *more)")
    fake.edit(worker, ' if grammar_output == "draft" else None', "")
    ran = fake.run(
        """
        from vllm.fake_engine import Engine
        from vllm.v1.core.sched.output import SchedulerOutput
        worker = Engine("attention").worker
        worker.load_model(load_dummy_weights=True, new=7)
        step, _ = worker.execute_model(SchedulerOutput(1), "more")
        answer(step=step, sampled=worker.sample_tokens("grammar", "more"))
        """,
        **BOTH,
    )
    assert ran.answer == {"step": ["more"], "sampled": ["grammar", "more"]}


def test_the_steps_of_vllms_warm_up_serve_nobody(fake: Fake) -> None:
    """The V2 model runner warms up by whole steps."""
    before = fake.run(WARM, **BOTH).answer
    assert before["calls"] == [[0, 3], [0, 3]]
    assert before["steps"] == 0
    assert before["then"] == 1


WARM = """
    from vllm.fake_engine import Engine
    engine = Engine("attention", "modular-moe")
    engine.worker.compile_or_warm_up_model()
    report = engine.report()
    calls = [[x["calls"]["serving"], x["calls"]["profile"]] for x in report["layers"]]
    engine.step()
    answer(calls=calls, steps=report["steps"], then=engine.report()["steps"])
    """


def test_the_first_served_step_is_reported_with_the_drafters_calls(
    fake: Fake, tmp_path: Path
) -> None:
    """Drafters run in sample_tokens, the second half of a step."""
    file = tmp_path / "report.jsonl"
    fake.edit(
        "v1/worker/gpu_worker.py",
        "return self.model(list(range(scheduler_output.total_num_scheduled_tokens)))",
        "self.model(list(range(scheduler_output.total_num_scheduled_tokens)))",
    )
    code = """
        from vllm.fake_engine import Engine
        Engine("attention").step(grammar="draft")
        answer(done=True)
        """
    fake.run(code, INFERA_REPORT=str(file), **BOTH)
    served = [json.loads(line) for line in file.read_text().splitlines()][-1]
    assert served["event"] == "served"
    assert served["layers"][0]["calls"]["serving"] == 2
