"""A stand-in for vLLM as a folder of source: what the shims touch, and a worker's life.

Each line of releases has the definitions that matrix/contracts records for it (test_fake_vllm.py
holds the two together), so the plugin's whole way runs on it: entry points, import hooks, worker,
report. A torch of a few lines stands beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

RECORDED = {"v0_22": "0.22.1", "v0_23": "0.23.0", "main": "0.32.0"}
PLATFORM_CLASSES = {
    "cpu": "vllm.platforms.cpu.CpuPlatform",
    "cuda": "vllm.platforms.cuda.CudaPlatform",
}
FUSED_MOE = "model_executor/layers/fused_moe"
ANSWER = "answer: "

COMMON = {
    "__init__.py": """
        import vllm.envs

        COMPLETE = True
        """,
    "envs.py": """
        import os

        def _plugins():
            return os.environ["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in os.environ else None

        environment_variables = {
            "VLLM_PLUGINS": _plugins,
            "VLLM_TARGET_DEVICE": lambda: os.environ.get("VLLM_TARGET_DEVICE"),
        }

        def compile_factors():
            return {name: str(read()) for name, read in environment_variables.items()}
        """,
    "logger.py": """
        import logging
        import logging.config

        def configure():
            logging.config.dictConfig({
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"plain": {"format": "%(levelname)s|%(message)s"}},
                "handlers": {"out": {
                    "class": "logging.StreamHandler",
                    "stream": "ext://sys.stdout",
                    "formatter": "plain",
                }},
                "loggers": {"vllm": {"handlers": ["out"], "level": "INFO", "propagate": False}},
            })

        def init_logger(name):
            return logging.getLogger(name)
        """,
    "plugins/__init__.py": """
        import logging
        from importlib.metadata import entry_points

        from vllm import envs

        loaded = False

        def load_plugins_by_group(group):
            allowed = envs.environment_variables["VLLM_PLUGINS"]()
            return {
                entry.name: entry.load()
                for entry in entry_points(group=group)
                if allowed is None or entry.name in allowed
            }

        def load_general_plugins():
            global loaded
            if loaded:
                return
            loaded = True
            for plugin in load_plugins_by_group("vllm.general_plugins").values():
                plugin()
        """,
    "utils/__init__.py": "",
    "utils/import_utils.py": """
        import importlib

        def resolve_obj_by_qualname(qualname):
            module, _, name = qualname.rpartition(".")
            return getattr(importlib.import_module(module), name)
        """,
    "platforms/interface.py": """
        class Platform:
            _enum = "unspecified"
            device_type = ""

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                return ""

            def __getattr__(self, name):
                return None
        """,
    "platforms/__init__.py": """
        from itertools import chain

        from vllm import envs
        from vllm.plugins import load_plugins_by_group
        from vllm.utils.import_utils import resolve_obj_by_qualname
        from .interface import Platform

        def cuda_platform_plugin():
            return <CUDA>

        def cpu_platform_plugin():
            return <CPU>

        builtin_platform_plugins = {"cuda": cuda_platform_plugin, "cpu": cpu_platform_plugin}

        _current_platform = None

        def _resolve():
            plugins = load_plugins_by_group("vllm.platform_plugins")
            active = {}
            for name, detect in chain(builtin_platform_plugins.items(), plugins.items()):
                try:
                    path = detect()
                except Exception:
                    continue
                if path is not None:
                    active[name] = path
            others = [name for name in active if name in plugins]
            if len(others) > 1:
                raise RuntimeError(f"Only one platform plugin can be activated: {others}")
            name = (others or list(active))[0]
            return resolve_obj_by_qualname(plugins[name]() if name in plugins else active[name])()

        def __getattr__(name):
            global _current_platform
            if name != "current_platform":
                raise AttributeError(name)
            if _current_platform is None:
                _current_platform = _resolve()
            return _current_platform
        """,
    "platforms/cpu.py": """
        from vllm.platforms.interface import Platform

        class CpuPlatform(Platform):
            _enum = "cpu"
            device_type = "cpu"

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                if attn_selector_config.use_mla:
                    return "vllm.v1.attention.backends.mla.MLABackend"
                return selected_backend or "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
        """,
    "platforms/cuda.py": """
        from vllm.platforms.interface import Platform

        class CudaPlatformBase(Platform):
            _enum = "cuda"
            device_type = "cuda"

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                if attn_selector_config.use_mla:
                    return "vllm.v1.attention.backends.mla.MLABackend"
                flash = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
                return selected_backend or flash

        class NvmlCudaPlatform(CudaPlatformBase):
            pass

        CudaPlatform = NvmlCudaPlatform
        """,
    "config/__init__.py": """
        from contextlib import contextmanager
        from dataclasses import dataclass, field

        from .compilation import CompilationConfig

        @dataclass
        class VllmConfig:
            layers: tuple
            backend: str | None = None
            compilation_config: CompilationConfig = field(default_factory=CompilationConfig)

        _current = []

        @contextmanager
        def set_current_vllm_config(config):
            _current.append(config)
            try:
                yield
            finally:
                _current.pop()

        def get_current_vllm_config():
            return _current[-1]
        """,
    "config/compilation.py": """
        from dataclasses import dataclass, field

        @dataclass
        class CompilationConfig:
            static_forward_context: dict = field(default_factory=dict)
        """,
    "v1/__init__.py": "",
    "v1/core/__init__.py": "",
    "v1/core/sched/__init__.py": "",
    "v1/core/sched/output.py": """
        from dataclasses import dataclass

        @dataclass
        class SchedulerOutput:
            total_num_scheduled_tokens: int
        """,
    "v1/attention/__init__.py": "",
    "v1/attention/backend.py": """
        class AttentionBackend:
            @staticmethod
            def get_name():
                raise NotImplementedError

            @staticmethod
            def get_impl_cls():
                raise NotImplementedError

            @classmethod
            def is_mla(cls):
                return False

        class AttentionImpl:
            def __init__(self, num_heads):
                self.num_heads = num_heads

            def forward(
                self, layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale=None, output_block_scale=None,
            ):
                raise NotImplementedError
        """,
    "v1/attention/selector.py": """
        from functools import cache
        from typing import NamedTuple

        from vllm.config import get_current_vllm_config
        from vllm.utils.import_utils import resolve_obj_by_qualname

        class AttentionSelectorConfig(NamedTuple):
            head_size: int
            use_mla: bool = False

        def get_attn_backend(head_size, use_mla=False):
            config = AttentionSelectorConfig(head_size, use_mla)
            return _cached_get_attn_backend(get_current_vllm_config().backend, config, 4)

        @cache
        def _cached_get_attn_backend(backend, attn_selector_config, num_heads=None<RUN_DTYPE>):
            from vllm.platforms import current_platform

            return resolve_obj_by_qualname(current_platform.get_attn_backend_cls(
                backend, attn_selector_config=attn_selector_config, num_heads=num_heads
            ))
        """,
    "v1/attention/backends/__init__.py": "",
    "v1/attention/backends/cpu_attn.py": """
        from vllm.v1.attention.backend import AttentionBackend, AttentionImpl

        class CPUAttentionBackend(AttentionBackend):
            @staticmethod
            def get_name():
                return "CPU_ATTN"

            @staticmethod
            def get_impl_cls():
                return CPUAttentionImpl

        class CPUAttentionImpl(AttentionImpl):
            def forward(
                self, layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale=None, output_block_scale=None,
            ):
                output[:] = [2 * x + self.num_heads for x in query]
                return output
        """,
    "v1/attention/backends/flash_attn.py": """
        from vllm.config import get_current_vllm_config
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        CONFIG_WHILE_IMPORTED = get_current_vllm_config()

        class FlashAttentionBackend(CPUAttentionBackend):
            @staticmethod
            def get_name():
                return "FLASH_ATTN"
        """,
    "v1/attention/backends/mla.py": """
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        class MLABackend(CPUAttentionBackend):
            @staticmethod
            def get_name():
                return "MLA"

            @classmethod
            def is_mla(cls):
                return True
        """,
    "v1/worker/__init__.py": "",
    "v1/worker/worker_base.py": """
        class WorkerBase:
            def __init__(
                self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=False
            ):
                self.vllm_config = vllm_config
                self.rank = rank
                self.device = None

            def load_model(self, *, load_dummy_weights=False):
                raise NotImplementedError

            def execute_model(self, scheduler_output):
                raise NotImplementedError

            def sample_tokens(self, grammar_output):
                raise NotImplementedError

            def compile_or_warm_up_model(self):
                raise NotImplementedError
        """,
    "v1/worker/gpu_worker.py": """
        from types import SimpleNamespace

        import torch

        from vllm.config import set_current_vllm_config
        from vllm.platforms import current_platform
        from vllm.v1.worker.worker_base import WorkerBase

        class Worker(WorkerBase):
            def init_device(self):
                self.device = SimpleNamespace(type=current_platform.device_type)

            def load_model(self, *, load_dummy_weights=False):
                from vllm.model_executor.models.tiny import Tiny

                with set_current_vllm_config(self.vllm_config):
                    self.model = Tiny(self.vllm_config)

            def profile(self):
                self.model([0])

            def compile_or_warm_up_model(self):
                self.execute_model(SimpleNamespace(total_num_scheduled_tokens=1))
                self.sample_tokens("draft")

            def capture(self):
                with torch.cuda.capturing():
                    self.model([0])

            def execute_model(self, scheduler_output):
                return self.model(list(range(scheduler_output.total_num_scheduled_tokens)))

            def sample_tokens(self, grammar_output):
                return self.model([9]) if grammar_output == "draft" else None
        """,
    "model_executor/__init__.py": "",
    "model_executor/custom_op.py": """
        op_registry = {}
        op_registry_oot = {}

        class _Op:
            def __new__(cls, *args, **kwargs):
                return super().__new__(op_registry_oot.get(cls.__name__, cls))

            @classmethod
            def register(cls, name):
                def note(op):
                    op.name = name
                    op_registry[name] = op
                    return op

                return note

        class PluggableLayer(_Op):
            pass

        class CustomOp(_Op):
            @classmethod
            def register_oot(cls, _decorated_op_cls=None, name=None):
                def note(op):
                    key = name if name is not None else cls.__name__
                    assert key not in op_registry_oot, f"Duplicate op name: {key}"
                    op.name = key
                    op_registry_oot[key] = op
                    return op

                return note if _decorated_op_cls is None else note(_decorated_op_cls)
        """,
    "model_executor/layers/__init__.py": "",
    "model_executor/layers/attention_layer_base.py": """
        class AttentionLayerBase:
            pass
        """,
    "model_executor/layers/mamba.py": """
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        class MambaMixer(AttentionLayerBase):
            def __init__(self, prefix):
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def __call__(self, x):
                return x
        """,
    "model_executor/layers/attention/__init__.py": "",
    "model_executor/layers/attention/attention.py": """
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.v1.attention.selector import get_attn_backend

        class Attention(AttentionLayerBase):
            def __init__(self, prefix, use_mla=False, attn_backend=None):
                self.layer_name = prefix
                self.attn_backend = attn_backend or get_attn_backend(64, use_mla)
                self.impl = self.attn_backend.get_impl_cls()(4)
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def __call__(self, x):
                return self.impl.forward(self, x, x, x, None, object(), [0] * len(x))
        """,
    f"{FUSED_MOE}/__init__.py": "",
    f"{FUSED_MOE}/modular_kernel.py": """
        class FusedMoEExpertsModular:
            def apply(
                self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation,
                global_num_experts, expert_map, a1q_scale, a2_scale, workspace13, workspace2,
                expert_tokens_meta, apply_router_weight_on_input,
            ):
                raise NotImplementedError

        class TritonExperts(FusedMoEExpertsModular):
            def apply(
                self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation,
                global_num_experts, expert_map, a1q_scale, a2_scale, workspace13, workspace2,
                expert_tokens_meta, apply_router_weight_on_input,
            ):
                output[:] = [3 * x + w1 for x in hidden_states]
                return "what apply returns"

        class FusedMoEKernelModularImpl:
            def __init__(self, fused_experts):
                self.fused_experts = fused_experts

        class FusedMoEKernelMonolithicImpl(FusedMoEKernelModularImpl):
            pass

        class FusedMoEKernel:
            def __init__(self, prepare_finalize, fused_experts<INPLACE>):
                modular = prepare_finalize == "modular"
                impl = FusedMoEKernelModularImpl if modular else FusedMoEKernelMonolithicImpl
                self.impl = impl(fused_experts)

            def apply(self, x):
                output = [0] * len(x)
                self.returned = self.impl.fused_experts.apply(
                    output, x, 1, 1, None, None, "silu", 4, None, None, None, None, None, None, True
                )
                return output
        """,
    f"{FUSED_MOE}/fused_moe_method_base.py": """
        class FusedMoEMethodBase:
            def __init__(self):
                self.moe_kernel = None
        """,
    f"{FUSED_MOE}/unquantized_fused_moe_method.py": """
        from vllm.model_executor.custom_op import CustomOp
        from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
        from vllm.model_executor.layers.fused_moe import modular_kernel
        from vllm.platforms import current_platform

        @CustomOp.register("unquantized_fused_moe")
        class UnquantizedFusedMoEMethod(FusedMoEMethodBase, CustomOp):
            def __init__(self, kind):
                super().__init__()
                if <MODULAR>:
                    self.moe_kernel = modular_kernel.FusedMoEKernel(
                        kind, modular_kernel.TritonExperts()<FALSE>
                    )

            def apply_monolithic(self, layer, x, router_logits, input_ids=None):
                return [3 * token + 1 for token in x]

            def run(self, layer, x):
                if self.moe_kernel is None:
                    return self.apply_monolithic(layer, x, None)
                return self.moe_kernel.apply(x)
        """,
    "model_executor/models/__init__.py": "",
    "model_executor/models/registry.py": """
        if __name__ == "__main__":
            from vllm.plugins import load_general_plugins

            load_general_plugins()
            print("inspected")
        """,
    "model_executor/models/tiny.py": """
        from vllm.model_executor.layers.attention.attention import Attention
        from vllm.model_executor.layers.mamba import MambaMixer
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        def build(kind, prefix):
            if kind.endswith("moe"):
                from vllm.model_executor.layers.fused_moe.layer import FusedMoE

                return FusedMoE(f"{prefix}.mlp.experts", kind.removesuffix("-moe"))
            if kind == "mamba":
                return MambaMixer(f"{prefix}.mixer")
            explicit = CPUAttentionBackend if kind == "explicit" else None
            return Attention(f"{prefix}.self_attn.attn", kind == "mla", explicit)

        class Tiny:
            def __init__(self, config):
                self.layers = [build(k, f"model.layers.{i}") for i, k in enumerate(config.layers)]

            def __call__(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
        """,
    "ray/__init__.py": "",
    "ray/ray_env.py": """
        DEFAULT_ENV_VAR_PREFIXES: set[str] = {"VLLM_", "HF_"}
        """,
    "entrypoints/__init__.py": "",
    "entrypoints/cli.py": """
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        print("asked")
        """,
    "fake_engine.py": """
        import vllm.logger
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.plugins import load_general_plugins
        from vllm.utils.import_utils import resolve_obj_by_qualname
        from vllm.v1.core.sched.output import SchedulerOutput

        class Engine:
            def __init__(self, *layers, rank=0, worker="vllm.v1.worker.gpu_worker.Worker"):
                load_general_plugins()
                vllm.logger.configure()
                config = VllmConfig(layers)
                with set_current_vllm_config(config):
                    self.worker = resolve_obj_by_qualname(worker)(config, rank, rank, "", True)
                    self.worker.init_device()
                self.worker.load_model()
                self.worker.profile()
                if self.worker.device.type == "cuda":
                    self.worker.capture()

            def step(self, tokens=3, grammar=None):
                result = self.worker.execute_model(SchedulerOutput(tokens))
                self.worker.sample_tokens(grammar)
                return result

            def report(self):
                return self.worker.infera_report()

            def layers(self):
                return {layer["layer"]: layer for layer in self.report()["layers"]}
        """,
}

MOE_LAYER_CLASS = {
    f"{FUSED_MOE}/layer.py": """
        from vllm.config import get_current_vllm_config
        from vllm.model_executor.custom_op import PluggableLayer
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
            UnquantizedFusedMoEMethod,
        )

        @PluggableLayer.register("fused_moe")
        class FusedMoE(PluggableLayer):
            def __init__(self, prefix, kind):
                self.layer_name = prefix
                self.quant_method = UnquantizedFusedMoEMethod(kind)
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def __call__(self, x):
                return self.quant_method.run(self, x)
        """,
}

MOE_RUNNER = {
    f"{FUSED_MOE}/layer.py": """
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        def FusedMoE(prefix, kind):
            return MoERunner(prefix, RoutedExperts(kind))
        """,
    f"{FUSED_MOE}/routed_experts.py": """
        from vllm.model_executor.custom_op import PluggableLayer
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
            UnquantizedFusedMoEMethod,
        )

        @PluggableLayer.register("routed_experts")
        class RoutedExperts(PluggableLayer):
            def __init__(self, kind):
                self.quant_method = UnquantizedFusedMoEMethod(kind)
        """,
    f"{FUSED_MOE}/runner/__init__.py": "",
    f"{FUSED_MOE}/runner/moe_runner.py": """
        from vllm.config import get_current_vllm_config

        class MoERunner:
            def __init__(self, prefix, routed_experts):
                self.layer_name = prefix
                self.routed_experts = routed_experts
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def __call__(self, x):
                return self.routed_experts.quant_method.run(self, x)
        """,
}

TORCH = """
    import sys
    from contextlib import contextmanager
    from types import ModuleType

    class Tensor:
        def __init__(self, values):
            self.values = values

        def __getitem__(self, part):
            return _View(self, part)

        def zero_(self):
            self.values[:] = [0] * len(self.values)

        def tolist(self):
            return list(self.values)

    class _View:
        def __init__(self, whole, part):
            self.whole, self.part = whole, part

        def add_(self, amount):
            self.whole.values[self.part] = [x + amount for x in self.whole.values[self.part]]

    int64 = "int64"

    created = []

    def zeros(size, dtype, device):
        created.append(Tensor([0] * size))
        return created[-1]

    def custom_op(name, mutates_args):
        def wrap(function):
            function.register_fake = lambda fake: fake
            return function

        return wrap

    class cuda:
        _capturing = False

        @staticmethod
        def is_current_stream_capturing():
            return cuda._capturing

        @staticmethod
        @contextmanager
        def capturing():
            cuda._capturing = True
            yield
            cuda._capturing = False

    def _module(name, **names):
        module = sys.modules[f"torch.{name}"] = ModuleType(f"torch.{name}")
        vars(module).update(names)
        return module

    library = _module("library", custom_op=custom_op)
    compiler = _module("compiler", is_compiling=lambda: False)
    """

PREAMBLE = f"""
import json

def answer(**facts):
    print({ANSWER!r} + json.dumps(facts))

"""


@dataclass(frozen=True)
class Ran:
    """A process that has ended."""

    status: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        found = [line for line in self.out.splitlines() if line.startswith(ANSWER)]
        assert found, f"the script gave no answer, status {self.status}:\n{self.out}\n{self.err}"
        return json.loads(found[-1].removeprefix(ANSWER))

    @property
    def log(self) -> list[tuple[str, str]]:
        """Our records by vLLM's handler: level and message, with the message's own lines."""
        records: list[tuple[str, str]] = []
        for line in self.out.splitlines():
            level, bar, text = line.partition("|")
            if bar and level in ("INFO", "WARNING", "ERROR"):
                records.append((level, text))
            elif records and line.startswith("  "):
                level, text = records[-1]
                records[-1] = level, f"{text}\n{line}"
        return [record for record in records if record[1].startswith("infera-compat")]

    def said(self, level: str) -> list[str]:
        return [text for found, text in self.log if found == level]


@dataclass(frozen=True)
class Fake:
    """A fake vLLM below `site`, a folder that a process gets on its path."""

    site: Path

    @property
    def root(self) -> Path:
        return self.site / "vllm"

    def edit(self, file: str, before: str, after: str) -> Fake:
        """Replace the only occurrence of `before` in a file of the package."""
        path = self.root / file
        text = path.read_text("utf-8")
        assert text.count(before) == 1, f"{before!r} occurs {text.count(before)} times in {file}"
        path.write_text(text.replace(before, after), "utf-8")
        return self

    def write(self, file: str, text: str) -> Path:
        """Write a file below `site`."""
        path = self.site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
        return path

    def entry_point(self, distribution: str, group: str, name: str, value: str) -> Fake:
        """Install a plugin of somebody else's."""
        info = f"{distribution}-1.0.dist-info"
        self.write(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        self.write(f"{info}/entry_points.txt", f"[{group}]\n{name} = {value}\n")
        return self

    def without_plugin(self) -> tuple[Path, ...]:
        """What to put on the path so that infera-compat's entry points are not there."""
        folder = self.site.with_name("without-plugin")
        info = folder / "infera_compat-0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: infera-compat\nVersion: 0\n")
        return (folder,)

    def run(
        self,
        code: str | None = None,
        *argv: str,
        command: tuple[str, ...] = (),
        path: tuple[Path, ...] = (),
        **environ: str,
    ) -> Ran:
        """Run `code` (or an interpreter `command`) in a process of its own on this vLLM."""
        given = {
            k: v for k, v in os.environ.items() if not k.startswith(("INFERA", "VLLM", "PYTHON"))
        }
        given["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in (*path, self.site))
        words = [*command, *argv] if code is None else ["-c", PREAMBLE + dedent(code), *argv]
        done = subprocess.run(
            [sys.executable, *words],
            env=given | environ,
            cwd=self.site,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def serve(self, *layers: str, steps: int = 1, more: str = "", **environ: str) -> Ran:
        """Build a model of these layers, serve `steps` steps, answer with the worker's report."""
        return self.run(
            f"from vllm.fake_engine import Engine\n"
            f"engine = Engine(*{layers!r})\n"
            f"results = [engine.step() for _ in range({steps})]\n"
            f"{dedent(more)}\n"
            f"answer(results=results, report=engine.report(), layers=engine.layers())\n",
            **environ,
        )


def build(
    site: Path,
    line: str = "main",
    *,
    text: str | None = None,
    device: str = "cpu",
    half_imported: bool = False,
    configures_logging: bool = True,
) -> Fake:
    """Write a vLLM of this line of releases, and a torch beside it, below `site`.

    text: what `_version.py` says (the recorded release's version if None, no such file if empty).
    device: the platform that detects itself, "cpu" or "cuda".
    half_imported: `import vllm` resolves the platform half-way, as 0.24 to 0.31 do.
    configures_logging: `import vllm.logger` hangs the handler, as all before 0.31 do.
    """
    fake = Fake(site)
    old = line == "v0_22"
    blanks = {
        "<CUDA>": repr(PLATFORM_CLASSES["cuda"] if device == "cuda" else None),
        "<CPU>": repr(PLATFORM_CLASSES["cpu"] if device == "cpu" else None),
        "<RUN_DTYPE>": ", *, _run_kv_cache_dtype=None" if line == "main" else "",
        "<INPLACE>": ", inplace" if old else "",
        "<FALSE>": ", False" if old else "",
        "<MODULAR>": "True" if line == "main" else 'current_platform.device_type != "cpu"',
    }
    for name, source in {**COMMON, **(MOE_RUNNER if line == "main" else MOE_LAYER_CLASS)}.items():
        for blank, value in blanks.items():
            source = source.replace(blank, value)
        fake.write(f"vllm/{name}", source)
    text = RECORDED[line] if text is None else text
    if text:
        fake.write("vllm/_version.py", f"__version__ = version = {text!r}\n")
    if half_imported:
        half = "from vllm.platforms import current_platform\n\nCOMPLETE = True"
        fake.edit("__init__.py", "COMPLETE = True", half)
    if configures_logging:
        fake.edit("logger.py", "def init_logger", "configure()\n\ndef init_logger")
    fake.write("torch/__init__.py", TORCH)
    return fake
