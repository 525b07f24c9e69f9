"""Where a model is built: vLLM's worker tells when to bind, what was built, and when it serves.

Upstream: vllm/v1/worker/worker_base.py `WorkerBase` (every release): each worker calls its
constructor first, then `load_model`, profiles, captures, and runs a step by `execute_model` and
`sample_tokens`. The constructor is wrapped; the rest is shadowed on the worker object alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from infera_compat import report
from infera_compat.harmless import harmless
from infera_compat.ledger import SERVING

if TYPE_CHECKING:
    from infera_compat.install import Installation


def watch(worker_base: ModuleType, installation: Installation) -> None:
    """Wrap WorkerBase's constructor; without one of the kind we know, all stays stock."""
    base = vars(worker_base).get("WorkerBase")
    if not isinstance(base, type) or "__init__" not in vars(base):
        report.warn(
            "infera-compat: vllm/v1/worker/worker_base.py has no WorkerBase with a constructor; "
            "expected one. All ops stay stock. Upgrade infera-compat."
        )
        return
    stock: Any = vars(base)["__init__"]

    strict = installation.settings.strict

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with harmless("binding the ops", strict):
            installation.before_model(kwargs["vllm_config"] if "vllm_config" in kwargs else args[0])
        stock(self, *args, **kwargs)
        # For `LLM.collective_rpc("infera_report")`: the book of each worker, while it runs.
        self.infera_report = installation.as_json
        # A worker of another make is left alone: every op is stock then.
        if installation.knows_worker():
            with harmless("following the worker", strict):
                _follow(self, installation)

    base.__init__ = __init__  # type: ignore[misc]


def _follow(worker: Any, installation: Installation) -> None:
    """Shadow the methods of one worker that say where it stands."""
    ledger = installation.ledger
    load_model, execute_model = worker.load_model, worker.execute_model
    sample_tokens, warm_up = worker.sample_tokens, worker.compile_or_warm_up_model
    state = {"warming": False, "unsampled": False}

    @functools.wraps(load_model)
    def load_and_survey(*args: Any, **kwargs: Any) -> Any:
        result = load_model(*args, **kwargs)
        what = "taking down the model's layers (what was bound stays bound)"
        with harmless(what, installation.must):
            survey = importlib.import_module("infera_shims.seams.survey")
            survey.watch_graphs(worker, installation)
            installation.model_built(list(survey.layers(worker, installation)), worker.rank)
        return result

    @functools.wraps(warm_up)
    def warm(*args: Any, **kwargs: Any) -> Any:
        # The V2 model runner warms up by whole steps (vllm/v1/worker/gpu_worker.py).
        state["warming"] = True
        with harmless("warming up the kernels", installation.must):
            installation.warm_up()
        try:
            return warm_up(*args, **kwargs)
        finally:
            state["warming"] = False

    def step(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if state["warming"]:
            return run(*args, **kwargs)
        before, ledger.phase = ledger.phase, SERVING
        try:
            return run(*args, **kwargs)
        finally:
            ledger.phase = before

    def served() -> None:
        if state["unsampled"]:
            state["unsampled"] = False
            installation.served()

    @functools.wraps(execute_model)
    def execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        served()
        if ledger.steps == 0 and not state["warming"]:
            ledger.before_first_step()
        result = step(execute_model, scheduler_output, *args, **kwargs)
        tokens = scheduler_output.total_num_scheduled_tokens
        state["unsampled"] = bool(tokens) and not state["warming"]
        # Nothing returned yet: the step goes on in sample_tokens, where drafters run.
        if result is not None:
            served()
        return result

    @functools.wraps(sample_tokens)
    def sample(*args: Any, **kwargs: Any) -> Any:
        result = step(sample_tokens, *args, **kwargs)
        served()
        return result

    worker.load_model, worker.compile_or_warm_up_model = load_and_survey, warm
    worker.execute_model, worker.sample_tokens = execute, sample
