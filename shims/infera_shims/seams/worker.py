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
from infera_compat.ledger import SERVING, Layer

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

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        installation.before_model()
        stock(self, *args, **kwargs)
        _follow(self, installation)

    base.__init__ = __init__  # type: ignore[misc]


def _survey(worker: Any, installation: Installation) -> list[Layer]:
    """The model's layers; taking them down must not cost a start, whatever they are made of."""
    survey = importlib.import_module("infera_shims.seams.survey")
    try:
        survey.watch_graphs(worker, installation)
        return list(survey.layers(worker, installation))
    except Exception as error:
        if installation.settings.strict:
            raise
        report.warn(
            f"infera-compat: the model's layers can't be taken down ({type(error).__name__}: "
            f"{error}). What was bound stays bound; the report has no layers."
        )
        return []


def _follow(worker: Any, installation: Installation) -> None:
    """Shadow the methods of one worker that say where it stands."""
    ledger = installation.ledger
    load_model, execute_model = worker.load_model, worker.execute_model

    @functools.wraps(load_model)
    def load_and_survey(*args: Any, **kwargs: Any) -> Any:
        result = load_model(*args, **kwargs)
        installation.model_built(_survey(worker, installation), worker.rank)
        return result

    @functools.wraps(execute_model)
    def execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if ledger.steps == 0:
            ledger.before_first_step()
        result = serve(execute_model, scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens:
            installation.served()
        return result

    def serve(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, ledger.phase = ledger.phase, SERVING
        try:
            return step(*args, **kwargs)
        finally:
            ledger.phase = before

    worker.load_model = load_and_survey
    worker.execute_model = execute
    worker.sample_tokens = functools.partial(serve, worker.sample_tokens)
    # For `LLM.collective_rpc("infera_report")`: the book of each worker, while it runs.
    worker.infera_report = installation.as_json
