"""The sources of fake_vllm.py, by file below the package; <WORDS> differ between the lines."""

from __future__ import annotations

FUSED_MOE = "model_executor/layers/fused_moe"

COMMON = {
    "__init__.py": """
        import vllm.envs

        COMPLETE = True
        """,
    "envs.py": """
        import os

        def _plugins():
            return os.environ["VLLM_PLUGINS"].split(",") if "VLLM_PLUGINS" in os.environ else None

        environment_variables: dict[str, object] = {
            "VLLM_PLUGINS": _plugins,
            "VLLM_TARGET_DEVICE": lambda: os.environ.get("VLLM_TARGET_DEVICE"),
        }

        VLLM_BATCH_INVARIANT = bool(int(os.environ.get("VLLM_BATCH_INVARIANT", "0")))

        def compile_factors():
            return {name: str(read()) for name, read in environment_variables.items()}
        """,
    "version.py": """
        try:
            from ._version import __version__
        except ImportError:
            __version__ = "dev"
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

            @classmethod
            def opaque_attention_op(cls):
                return True

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
                    sparse = "Sparse" if attn_selector_config.use_sparse else ""
                    return f"vllm.v1.attention.backends.mla.{sparse}MLABackend"
                return selected_backend or "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
        """,
    "platforms/cuda.py": """
        from vllm.platforms.interface import Platform

        class CudaPlatformBase(Platform):
            _enum = "cuda"
            device_type = "cuda"

            @classmethod
            def get_device_name(cls, device_id=0):
                return "NVIDIA Fake"

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                if attn_selector_config.use_mla:
                    sparse = "Sparse" if attn_selector_config.use_sparse else ""
                    return f"vllm.v1.attention.backends.mla.{sparse}MLABackend"
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
        class AttentionConfig:
            backend: str | None = None
            backend_per_kind: dict = field(default_factory=dict)

        @dataclass
        class KernelConfig:
            moe_backend: str = "auto"

        @dataclass
        class ModelConfig:
            use_mla: bool = False

        @dataclass
        class VllmConfig:
            layers: tuple
            architecture: str = "TinyForCausalLM"
            backend: str | None = None
            compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
            attention_config: AttentionConfig = field(default_factory=AttentionConfig)
            kernel_config: KernelConfig = field(default_factory=KernelConfig)
            model_config: ModelConfig = field(default_factory=ModelConfig)

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

        class MLAAttentionImpl:
            is_sparse = False

            def __init__(self, num_heads):
                self.num_heads = num_heads

            def forward_mha(
                self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output
            ):
                raise NotImplementedError

            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
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
            use_sparse: bool = False

        def get_attn_backend(head_size, use_mla=False, use_sparse=False):
            config = AttentionSelectorConfig(head_size, use_mla, use_sparse)
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
        from vllm.v1.attention.backend import AttentionBackend, MLAAttentionImpl

        class MLABackend(AttentionBackend):
            @staticmethod
            def get_name():
                return "MLA"

            @staticmethod
            def get_impl_cls():
                return MLAImpl

            @classmethod
            def is_mla(cls):
                return True

        class MLAImpl(MLAAttentionImpl):
            def forward_mha(
                self, q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output
            ):
                output[:] = [2 * x + self.num_heads for x in q]

            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
                return [2 * x + self.num_heads for x in q], None

        class SparseMLABackend(MLABackend):
            @staticmethod
            def get_name():
                return "SPARSE_MLA"

            @staticmethod
            def get_impl_cls():
                return SparseMLAImpl

        class SparseMLAImpl:
            is_sparse = True

            def __init__(self, num_heads):
                self.num_heads = num_heads

            def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
                return [2 * x + self.num_heads for x in q], None
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
                from vllm.model_executor.models.registry import ModelRegistry

                config = self.vllm_config
                with set_current_vllm_config(config):
                    model_class = ModelRegistry.resolve_model_cls(config.architecture)
                    self.model = model_class(vllm_config=config, prefix="")
                for module in self.model.modules():
                    if "quant_method" in vars(module):
                        module.quant_method.process_weights_after_loading(module)

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
        from torch import nn

        op_registry: dict[str, type] = {}
        op_registry_oot: dict[str, type] = {}

        def _registers(registry, key, cls):
            assert key not in registry, f"Duplicate name: {key}"
            cls.name = key
            registry[key] = cls
            return cls

        class PluggableLayer(nn.Module):
            def __new__(cls, *args, **kwargs):
                return super().__new__(op_registry_oot.get(cls.__name__, cls))

            @classmethod
            def register(cls, name):
                return lambda layer_cls: _registers(op_registry, name, layer_cls)

            @classmethod
            def register_oot(cls, _decorated_layer_cls=None, name=None):
                key = name if name is not None else cls.__name__
                if _decorated_layer_cls is None:
                    return lambda layer_cls: _registers(op_registry_oot, key, layer_cls)
                return _registers(op_registry_oot, key, _decorated_layer_cls)

        class CustomOp(nn.Module):
            def __new__(cls, *args, **kwargs):
                return super().__new__(op_registry_oot.get(cls.__name__, cls))

            def forward(self, *args, **kwargs):
                return self.forward_native(*args, **kwargs)

            @classmethod
            def register(cls, name):
                return lambda op_cls: _registers(op_registry, name, op_cls)

            @classmethod
            def register_oot(cls, _decorated_op_cls=None, name=None):
                key = name if name is not None else cls.__name__
                if _decorated_op_cls is None:
                    return lambda op_cls: _registers(op_registry_oot, key, op_cls)
                return _registers(op_registry_oot, key, _decorated_op_cls)
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
        from torch import nn

        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.platforms import current_platform
        from vllm.v1.attention.selector import get_attn_backend

        class Attention(nn.Module, AttentionLayerBase):
            def __init__(
                self, num_heads, head_size, scale, num_kv_heads=None, prefix="", attn_backend=None,
                **extra_impl_args,
            ):
                super().__init__()
                self.layer_name = prefix
                self.attn_backend = attn_backend or get_attn_backend(head_size)
                self.impl = self.attn_backend.get_impl_cls()(num_heads, **extra_impl_args)
                self.use_direct_call = not current_platform.opaque_attention_op()
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def forward(self, query):
                return self.impl.forward(
                    self, query, query, query, None, object(), output=[0] * len(query),
                    output_scale=None, output_block_scale=None,
                )
        """,
    "model_executor/layers/attention/mla_attention.py": """
        from torch import nn

        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.platforms import current_platform
        from vllm.v1.attention.selector import get_attn_backend

        class MLAAttention(nn.Module, AttentionLayerBase):
            def __init__(
                self, num_heads, scale, prefix="", attn_backend=None, use_sparse=False,
                **extra_impl_args,
            ):
                super().__init__()
                self.layer_name = prefix
                self.attn_backend = attn_backend or get_attn_backend(64, True, use_sparse)
                self.impl = self.attn_backend.get_impl_cls()(num_heads, **extra_impl_args)
                self.use_direct_call = not current_platform.opaque_attention_op()
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def forward(self, q, kv_c_normed, k_pe):
                decodes = len(q) if self.impl.is_sparse else 1
                prefills = [0] * len(q[decodes:])
                if prefills:
                    self.impl.forward_mha(
                        q[decodes:], kv_c_normed, k_pe, None, object(), 1.0, output=prefills
                    )
                attn_out, _ = self.impl.forward_mqa(q[:decodes], None, object(), self)
                return attn_out + prefills
        """,
    "model_executor/layers/mla.py": """
        from vllm.model_executor.custom_op import PluggableLayer
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention

        @PluggableLayer.register("multi_head_latent_attention")
        class MultiHeadLatentAttentionWrapper(PluggableLayer):
            def __init__(self, hidden_size, num_heads, scale, prefix="", is_sparse=False):
                super().__init__()
                self.hidden_size = hidden_size
                self.mla_attn = MLAAttention(
                    num_heads, scale, prefix=f"{prefix}.attn", use_sparse=is_sparse
                )

            def forward(self, positions, hidden_states, llama_4_scaling=None):
                return self.mla_attn(hidden_states, hidden_states, hidden_states)
        """,
    f"{FUSED_MOE}/__init__.py": "",
    f"{FUSED_MOE}/modular_kernel.py": """
        class FusedMoEExpertsModular:
            is_monolithic = False

            def apply(
                self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation,
                global_num_experts, expert_map, a1q_scale, a2_scale, workspace13, workspace2,
                expert_tokens_meta, apply_router_weight_on_input,
            ):
                raise NotImplementedError

        class FusedMoEExpertsMonolithic:
            is_monolithic = True

            def apply(self, hidden_states, w1, w2, router_logits):
                return [3 * x + w1 for x in hidden_states]

        class TritonExperts(FusedMoEExpertsModular):
            def apply(
                self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation,
                global_num_experts, expert_map, a1q_scale, a2_scale, workspace13, workspace2,
                expert_tokens_meta, apply_router_weight_on_input,
            ):
                output[:] = [3 * x + w1 for x in hidden_states]
                return "what apply returns"

        class RoutingExperts(FusedMoEExpertsMonolithic):
            pass

        class FusedMoEKernelModularImpl:
            def __init__(self, fused_experts):
                self.fused_experts = fused_experts

        class FusedMoEKernelMonolithicImpl:
            def __init__(self, experts):
                self.fused_experts = experts

        class FusedMoEKernel:
            def __init__(self, prepare_finalize, fused_experts<INPLACE>):
                modular = isinstance(fused_experts, FusedMoEExpertsModular)
                impl = FusedMoEKernelModularImpl if modular else FusedMoEKernelMonolithicImpl
                self.impl = impl(fused_experts)

            def apply(self, x):
                output = [0] * len(x)
                self.returned = self.impl.fused_experts.apply(
                    output=output, hidden_states=x, w1=1, w2=1, topk_weights=None, topk_ids=None,
                    activation="silu", global_num_experts=4, expert_map=None, a1q_scale=None,
                    a2_scale=None, workspace13=None, workspace2=None, expert_tokens_meta=None,
                    apply_router_weight_on_input=True,
                )
                return output

            def apply_monolithic(self, x, router_logits):
                experts = self.impl.fused_experts
                return experts.apply(x, 1, 1, router_logits)
        """,
    f"{FUSED_MOE}/fused_moe_method_base.py": """
        class FusedMoEMethodBase:
            def __init__(self, moe):
                super().__init__()
                self.moe = moe
                self.moe_kernel = None

            def process_weights_after_loading(self, layer):
                raise NotImplementedError

            def apply(
                self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input
            ):
                raise NotImplementedError

            def apply_monolithic(self, layer, x, router_logits, input_ids=None):
                raise NotImplementedError
        """,
    f"{FUSED_MOE}/unquantized_fused_moe_method.py": """
        from vllm.model_executor.custom_op import CustomOp
        from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
        from vllm.model_executor.layers.fused_moe import modular_kernel
        from vllm.platforms import current_platform

        def experts_of(moe):
            if current_platform.device_type == "cpu" and (not <MODULAR_ON_CPU> or moe == "modular"):
                <CPU_EXPERTS>
            return getattr(
                modular_kernel, "TritonExperts" if moe == "modular" else "RoutingExperts"
            )

        @CustomOp.register("unquantized_fused_moe")
        class UnquantizedFusedMoEMethod(FusedMoEMethodBase, CustomOp):
            def __init__(self, moe):
                super().__init__(moe)
                self.experts_cls = experts_of(moe)

            @property
            def is_monolithic(self):
                return self.experts_cls is None or self.experts_cls.is_monolithic

            def process_weights_after_loading(self, layer):
                if self.experts_cls is not None:
                    self.moe_kernel = modular_kernel.FusedMoEKernel(
                        self.moe, self.experts_cls()<FALSE>
                    )

            def apply(
                self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input
            ):
                return self.forward(layer, x, topk_weights, topk_ids)

            def forward_native(self, layer, x, topk_weights, topk_ids):
                return self.moe_kernel.apply(x)

            def apply_monolithic(self, layer, x, router_logits, input_ids=None):
                if self.moe_kernel is None:
                    return [3 * token + 1 for token in x]
                return self.moe_kernel.apply_monolithic(x, router_logits)
        """,
    "model_executor/models/__init__.py": "",
    "model_executor/models/registry.py": """
        import importlib
        from dataclasses import dataclass, field
        from functools import lru_cache

        _VLLM_MODELS = {
            "TinyForCausalLM": ("tiny", "TinyForCausalLM"),
            "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
            "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
            "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
            "DeepseekV2ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),
        }

        @dataclass(frozen=True)
        class _RegisteredModel:
            model_cls: type

            def load_model_cls(self):
                return self.model_cls

        @dataclass(frozen=True)
        class _LazyRegisteredModel:
            module_name: str
            class_name: str

            def load_model_cls(self):
                return getattr(importlib.import_module(self.module_name), self.class_name)

        @lru_cache(maxsize=128)
        def _try_load_model_cls(model_arch, model):
            return model.load_model_cls()

        @dataclass
        class _ModelRegistry:
            models: dict[str, object] = field(default_factory=dict)

            def register_model(self, model_arch, model_cls):
                lazy = isinstance(model_cls, str)
                self.models[model_arch] = (
                    _LazyRegisteredModel(*model_cls.split(":"))
                    if lazy
                    else _RegisteredModel(model_cls)
                )

            def resolve_model_cls(self, architecture):
                return _try_load_model_cls(architecture, self.models[architecture])

        ModelRegistry = _ModelRegistry({
            architecture: _LazyRegisteredModel(f"vllm.model_executor.models.{module}", name)
            for architecture, (module, name) in _VLLM_MODELS.items()
        })

        if __name__ == "__main__":
            from vllm.plugins import load_general_plugins

            load_general_plugins()
            print("inspected")
        """,
    "model_executor/models/extract_hidden_states.py": """
        from torch import nn

        from vllm.config import get_current_vllm_config
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        class CacheOnlyAttentionLayer(nn.Module, AttentionLayerBase):
            def __init__(self, prefix):
                super().__init__()
                self.layer_name = prefix
                self.attn_backend = CPUAttentionBackend
                self.impl = self.attn_backend.get_impl_cls()(4)
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def forward(self, x):
                return x
        """,
    "model_executor/models/tiny.py": """
        from torch import nn

        from vllm.model_executor.layers.attention.attention import Attention
        from vllm.model_executor.layers.mamba import MambaMixer
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        def build(kind, prefix):
            if kind.endswith("moe"):
                from vllm.model_executor.layers.fused_moe.layer import FusedMoE

                return FusedMoE(f"{prefix}.mlp.experts", kind.removesuffix("-moe"))
            if kind in ("mla", "sparse-mla"):
                from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

                return MultiHeadLatentAttentionWrapper(
                    64, 4, 0.1, prefix=f"{prefix}.self_attn", is_sparse=kind == "sparse-mla"
                )
            if kind == "bare-mla":
                from vllm.model_executor.layers.attention.mla_attention import MLAAttention

                return MLAAttention(4, 0.1, prefix=f"{prefix}.self_attn.attn")
            if kind == "cache-only":
                from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

                return CacheOnlyAttentionLayer(f"{prefix}.self_attn.attn")
            if kind == "mamba":
                return MambaMixer(f"{prefix}.mixer")
            explicit = CPUAttentionBackend if kind == "explicit" else None
            return Attention(4, 64, 0.1, prefix=f"{prefix}.self_attn.attn", attn_backend=explicit)

        def call(kind, layer, x):
            if kind.endswith("moe"):
                return layer(hidden_states=x, router_logits=x)
            if kind in ("mla", "sparse-mla"):
                return layer(positions=x, hidden_states=x)
            return layer(x, x, x) if kind == "bare-mla" else layer(x)

        class TinyForCausalLM(nn.Module):
            def __init__(self, *, vllm_config, prefix=""):
                super().__init__()
                self.kinds = vllm_config.layers
                self.layers = [build(k, f"model.layers.{i}") for i, k in enumerate(self.kinds)]

            def forward(self, x):
                for kind, layer in zip(self.kinds, self.layers):
                    x = call(kind, layer, x)
                return x
        """,
    "model_executor/models/llama.py": """
        from vllm.model_executor.models.tiny import TinyForCausalLM

        class LlamaDecoderLayer:
            pass

        class LlamaForCausalLM(TinyForCausalLM):
            def __init__(self, *, vllm_config, prefix="", layer_type=LlamaDecoderLayer):
                super().__init__(vllm_config=vllm_config, prefix=prefix)
        """,
    **{
        f"model_executor/models/{module}.py": f"""
        from vllm.model_executor.models.tiny import TinyForCausalLM

        class {name}(TinyForCausalLM):
            def __init__(self, *, vllm_config, prefix=""):
                super().__init__(vllm_config=vllm_config, prefix=prefix)
        """
        for module, name in (
            ("qwen3", "Qwen3ForCausalLM"),
            ("qwen3_moe", "Qwen3MoeForCausalLM"),
            ("deepseek_v2", "DeepseekV2ForCausalLM"),
        )
    },
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
            def __init__(
                self, *layers, rank=0, worker="vllm.v1.worker.gpu_worker.Worker",
                architecture="TinyForCausalLM",
            ):
                load_general_plugins()
                vllm.logger.configure()
                config = VllmConfig(layers, architecture)
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
                super().__init__()
                self.layer_name = prefix
                self.quant_method = UnquantizedFusedMoEMethod(kind)
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def forward(self, hidden_states, router_logits, input_ids=None):
                method = self.quant_method
                if method.is_monolithic:
                    return method.apply_monolithic(
                        layer=self, x=hidden_states, router_logits=router_logits,
                        input_ids=input_ids,
                    )
                return method.apply(
                    layer=self, x=hidden_states, topk_weights=None, topk_ids=None,
                    shared_experts=None, shared_experts_input=None,
                )
        """,
}

MOE_RUNNER = {
    f"{FUSED_MOE}/layer.py": """
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        def FusedMoE(prefix, kind):
            return MoERunner(prefix, RoutedExperts(prefix, kind))
        """,
    f"{FUSED_MOE}/routed_experts.py": """
        from vllm.model_executor.custom_op import PluggableLayer
        from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
            UnquantizedFusedMoEMethod,
        )

        @PluggableLayer.register("routed_experts")
        class RoutedExperts(PluggableLayer):
            def __init__(self, layer_name, kind):
                super().__init__()
                self.layer_name = layer_name
                self.quant_method = UnquantizedFusedMoEMethod(kind)

            def forward_modular(
                self, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None
            ):
                return self.quant_method.apply(
                    layer=self, x=x, topk_weights=topk_weights, topk_ids=topk_ids,
                    shared_experts=shared_experts, shared_experts_input=shared_experts_input,
                )

            def forward_monolithic(self, x, router_logits=None, input_ids=None):
                return self.quant_method.apply_monolithic(
                    layer=self, x=x, router_logits=router_logits, input_ids=input_ids
                )
        """,
    f"{FUSED_MOE}/runner/__init__.py": "",
    f"{FUSED_MOE}/runner/moe_runner.py": """
        from torch import nn

        from vllm.config import get_current_vllm_config

        class MoERunner(nn.Module):
            def __init__(self, prefix, routed_experts):
                super().__init__()
                self.layer_name = prefix
                self.routed_experts = routed_experts
                get_current_vllm_config().compilation_config.static_forward_context[prefix] = self

            def forward(self, hidden_states, router_logits, input_ids=None):
                if self.routed_experts.quant_method.is_monolithic:
                    return self.routed_experts.forward_monolithic(
                        x=hidden_states, router_logits=router_logits, input_ids=input_ids
                    )
                return self.routed_experts.forward_modular(
                    x=hidden_states, topk_weights=None, topk_ids=None
                )
        """,
}


def cpu_experts(kind: str, unquantized: bool) -> dict[str, str]:
    """A CPU's experts: "Monolithic", then "Modular"; unquantized ones from 0.28 on."""
    stock = {"Modular": "TritonExperts", "Monolithic": "RoutingExperts"}[kind]
    own = f"""
        class CPUUnquantizedExperts(FusedMoEExperts{kind}):
            apply = {stock}.apply
        """
    return {
        f"{FUSED_MOE}/experts/__init__.py": "",
        f"{FUSED_MOE}/experts/cpu_moe.py": f"""
        from vllm.model_executor.layers.fused_moe.modular_kernel import (
            FusedMoEExperts{kind},
            {stock},
        )

        class CPUExpertsFp8(FusedMoEExperts{kind}):
            pass
        {own if unquantized else ""}
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

    made = {}

    def custom_op(name, mutates_args):
        def wrap(function):
            def op(written, *rest):
                op.calls.append(rest)
                return function(written, *rest)

            op.calls = []
            op.register_fake = lambda fake: fake
            made[name] = op
            return op

        return wrap

    class cuda:
        _capturing = False

        @staticmethod
        def is_available():
            return False

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

    class Module:
        def __call__(self, *args, **kwargs):
            return self.forward(*args, **kwargs)

        def modules(self):
            yield self
            for value in vars(self).values():
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, Module):
                        yield from part.modules()

    nn = _module("nn", Module=Module)
    library = _module("library", custom_op=custom_op, made=made)
    compiler = _module("compiler", is_compiling=lambda: False)
    """
