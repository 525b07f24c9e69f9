"""A CPU worker for processors without AVX512, on releases up to 0.27.

Stock's MoE there takes a path in plain torch that makes an activation module in each forward
(`_CPU_MOE_ACT_FN`, vllm/model_executor/layers/fused_moe/cpu_fused_moe.py), and a module can only
be made while a vLLM configuration is current: the warm-up ends in "Current vLLM config is not
set", whatever the model. This worker keeps the configuration current while the model runs, and
changes nothing else.
"""

from __future__ import annotations

from typing import Any

from vllm.config import set_current_vllm_config
from vllm.v1.worker.cpu_worker import CPUWorker


class ConfiguredCPUWorker(CPUWorker):
    """Stock's worker, with its configuration current wherever the model may run."""

    def determine_available_memory(self) -> Any:
        """Warm up the model and return the bytes for the cache, as stock does."""
        with set_current_vllm_config(self.vllm_config):
            return super().determine_available_memory()

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, as stock does."""
        with set_current_vllm_config(self.vllm_config):
            return super().execute_model(*args, **kwargs)
