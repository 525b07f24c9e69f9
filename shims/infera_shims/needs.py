"""What binding touches in every release from 0.22 on, by seam; what moved stands in the lines.

The lines of releases (main.py, v0_24.py, …) add what is not the same in all of them.
"""

from __future__ import annotations

from infera_compat.contracts import ANY, Need

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
ATTENTION = "vllm.model_executor.layers.attention.attention"
MLA_ATTENTION = "vllm.model_executor.layers.attention.mla_attention"
MLA_WRAPPER = "vllm.model_executor.layers.mla"
CUSTOM_OP = "vllm.model_executor.custom_op"
METHOD = f"{FUSED_MOE}.unquantized_fused_moe_method"
MODELS = "vllm.model_executor.models"
REGISTRY = f"{MODELS}.registry"


def _attributes(owner: str, **why: str) -> tuple[Need, ...]:
    """Attributes that a class's constructor sets."""
    return tuple(Need(f"{owner}.{name}", "attribute", what) for name, what in why.items())


WORKER = (
    *_attributes(
        "vllm.v1.worker.worker_base:WorkerBase",
        vllm_config="leads to the model's layers",
        rank="whose book it is",
        device="whether there are CUDA graphs to look into",
    ),
    Need(
        "vllm.platforms.interface:Platform.device_type",
        "variable",
        "which MoE seam this kind of device has",
        type="str",
    ),
    Need(
        "vllm.v1.worker.worker_base:WorkerBase.__init__",
        "method",
        "a worker that is being made is where a model will be built",
        ("self", "vllm_config", ANY),
    ),
    Need(
        "vllm.v1.worker.worker_base:WorkerBase.load_model",
        "method",
        "the layers are taken down after it",
        ("self", ANY),
    ),
    Need(
        "vllm.v1.worker.worker_base:WorkerBase.execute_model",
        "method",
        "a step that serves, told from one that profiles",
        ("self", "scheduler_output"),
    ),
    Need(
        "vllm.v1.worker.worker_base:WorkerBase.sample_tokens",
        "method",
        "the second half of a step (drafters run in it)",
        ("self", "grammar_output"),
    ),
    Need(
        "vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model",
        "method",
        "steps in it serve nobody",
        ("self",),
    ),
    Need(
        "vllm.v1.core.sched.output:SchedulerOutput.total_num_scheduled_tokens",
        "variable",
        "a step without tokens serves nothing",
        type="int",
    ),
    Need(
        "vllm.config.compilation:CompilationConfig.static_forward_context",
        "variable",
        "the model's attention and MoE layers by name",
        type="dict",
    ),
    Need(
        "vllm.envs:environment_variables",
        "variable",
        "its values enter the compile key",
        type="dict",
    ),
    Need(
        "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase",
        "class",
        "what every attention layer is, ours to cover or not",
    ),
)

IMPL = (
    Need(
        "vllm.v1.attention.backend:AttentionBackend.get_name",
        "staticmethod",
        "names the stock backend",
        (),
    ),
    Need(
        "vllm.v1.attention.backend:AttentionBackend.is_mla",
        "classmethod",
        "tells MLA layers from the others",
        ("cls",),
    ),
    Need(
        "vllm.v1.attention.backend:AttentionImpl.forward",
        "method",
        "what a bound layer runs first",
        (
            "self",
            "layer",
            "query",
            "key",
            "value",
            "kv_cache",
            "attn_metadata",
            "output",
            "output_scale",
            "output_block_scale",
        ),
        defaults=(("output_scale", "None"), ("output_block_scale", "None")),
    ),
    Need(
        f"{ATTENTION}:Attention",
        "class",
        "its impl runs the kernel",
        bases=("AttentionLayerBase",),
    ),
    *_attributes(
        f"{ATTENTION}:Attention",
        impl="where a bound layer's forward stands",
        attn_backend="names the stock backend",
        layer_name="its calls are counted under this name",
    ),
)

BACKEND_CLS = (
    Need(
        "vllm.platforms.interface:Platform.get_attn_backend_cls",
        "classmethod",
        "wrapped on the active platform's class",
        ("cls", "selected_backend", "attn_selector_config", "num_heads"),
    ),
    Need(
        "vllm.v1.attention.selector:_cached_get_attn_backend",
        "function",
        "asks the platform; its cache is emptied when the answer changes",
        ("backend", "attn_selector_config", "num_heads", ANY),
    ),
    Need(
        "vllm.v1.attention.selector:AttentionSelectorConfig.use_mla",
        "variable",
        "MLA layers run forward_mqa and forward_mha, which this seam does not take",
        type="bool",
    ),
    Need(
        "vllm.utils.import_utils:resolve_obj_by_qualname",
        "function",
        "imports the class that the platform names",
        ("qualname",),
    ),
    Need(
        "vllm.v1.attention.backend:AttentionBackend.get_impl_cls",
        "staticmethod",
        "overridden in the subclass of the stock backend",
        (),
    ),
    *IMPL,
)

PLATFORM = (
    Need(
        "vllm.platforms:builtin_platform_plugins",
        "variable",
        "tells the stock platform that InferaPlatform stands on",
        type="dict",
    ),
    *BACKEND_CLS,
)

LAYER = (
    Need(
        f"{ATTENTION}:Attention.__init__",
        "method",
        "each layer is bound after it",
        ("self", "num_heads", "head_size", "scale", ANY),
    ),
    Need(
        f"{MLA_ATTENTION}:MLAAttention.__init__",
        "method",
        "each MLA layer is bound after it",
        ("self", "num_heads", "scale", ANY),
    ),
    *IMPL,
    *_attributes(
        f"{ATTENTION}:Attention",
        use_direct_call="whether Dynamo traces into the layer, where a Python counter lies",
    ),
    Need(
        "vllm.v1.attention.backend:MLAAttentionImpl.forward_mqa",
        "method",
        "shadowed on the layer's impl: decode",
    ),
    Need(
        "vllm.v1.attention.backend:MLAAttentionImpl.forward_mha",
        "method",
        "shadowed on the layer's impl: prefill",
    ),
    Need(
        f"{MLA_ATTENTION}:MLAAttention",
        "class",
        "its impl runs the kernel",
        bases=("AttentionLayerBase",),
    ),
    *_attributes(
        f"{MLA_ATTENTION}:MLAAttention",
        impl="where a bound layer's methods stand",
        attn_backend="names the stock backend",
        layer_name="its calls are counted under this name",
        use_direct_call="whether Dynamo traces into the layer, where a Python counter lies",
    ),
)

REPLACING = (
    Need(
        f"{CUSTOM_OP}:op_registry",
        "variable",
        "tells whether the name is that of the class to replace",
        type="dict",
    ),
    Need(
        f"{CUSTOM_OP}:op_registry_oot",
        "variable",
        "tells whether another plugin holds the name",
        type="dict",
    ),
)

PLUGGABLE = (
    *REPLACING,
    Need(
        f"{CUSTOM_OP}:PluggableLayer.__new__",
        "method",
        "makes an instance of the replacement",
        ("cls", "*args", "**kwargs"),
    ),
    Need(
        f"{CUSTOM_OP}:PluggableLayer.register_oot",
        "classmethod",
        "registers the subclass",
        ("cls", "_decorated_layer_cls", "name"),
    ),
)

MLA_LAYER = (
    *PLUGGABLE,
    Need(
        f"{MLA_WRAPPER}:MultiHeadLatentAttentionWrapper",
        "class",
        "replaced by a subclass, under this class's name",
        bases=("PluggableLayer",),
        decorator="multi_head_latent_attention",
    ),
    Need(
        f"{MLA_WRAPPER}:MultiHeadLatentAttentionWrapper.forward",
        "method",
        "overridden in the subclass",
        ("self", "positions", "hidden_states", ANY),
    ),
    *_attributes(
        f"{MLA_WRAPPER}:MultiHeadLatentAttentionWrapper",
        mla_attn="the attention layer in it, whose name it is counted under",
    ),
    *_attributes(
        f"{MLA_ATTENTION}:MLAAttention", layer_name="its calls are counted under this name"
    ),
)

MODULAR_KERNEL = (
    Need(
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernelModularImpl",
        "class",
        "tells a modular kernel from a monolithic one",
    ),
    *_attributes(
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernel", impl="a modular kernel or a monolithic one"
    ),
    *_attributes(
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernelModularImpl",
        fused_experts="the experts object whose apply is shadowed",
    ),
    *_attributes(
        f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase",
        moe_kernel="tells which layer a kernel serves",
    ),
    Need(
        f"{FUSED_MOE}.modular_kernel:FusedMoEExpertsModular.apply",
        "method",
        "shadowed on the experts object",
        (
            "self",
            "output",
            "hidden_states",
            "w1",
            "w2",
            "topk_weights",
            "topk_ids",
            "activation",
            "global_num_experts",
            "expert_map",
            "a1q_scale",
            "a2_scale",
            "workspace13",
            "workspace2",
            "expert_tokens_meta",
            "apply_router_weight_on_input",
        ),
    ),
)

TOP_K = ("self", "layer", "x", "topk_weights", "topk_ids", ANY)
LOGITS = ("self", "layer", "x", "router_logits", ANY)

REGISTER_OOT = (
    *REPLACING,
    Need(
        f"{CUSTOM_OP}:CustomOp.__new__",
        "method",
        "makes an instance of the replacement",
        ("cls", "*args", "**kwargs"),
    ),
    Need(
        f"{METHOD}:UnquantizedFusedMoEMethod",
        "class",
        "replaced by a subclass, under this class's name",
        bases=("CustomOp",),
        decorator="unquantized_fused_moe",
    ),
    Need(
        f"{METHOD}:UnquantizedFusedMoEMethod.apply",
        "method",
        "overridden in the subclass: experts that are told the top-k",
        TOP_K,
    ),
    Need(
        f"{METHOD}:UnquantizedFusedMoEMethod.apply_monolithic",
        "method",
        "overridden in the subclass: experts that route too",
        LOGITS,
    ),
    Need(
        f"{CUSTOM_OP}:CustomOp.register_oot",
        "classmethod",
        "registers the subclass",
        ("cls", "_decorated_op_cls", "name"),
    ),
)

WHOLE_MODEL = (
    Need(
        f"{REGISTRY}:ModelRegistry",
        "variable",
        "holds the model classes by architecture",
        type="_ModelRegistry",
    ),
    Need(
        f"{REGISTRY}:_ModelRegistry.models",
        "variable",
        "tells whether an architecture's class is stock's",
        type="dict",
    ),
    Need(
        f"{REGISTRY}:_ModelRegistry.register_model",
        "method",
        "registers the subclass",
        ("self", "model_arch", "model_cls"),
    ),
    Need(
        f"{REGISTRY}:_LazyRegisteredModel.module_name",
        "variable",
        "where an architecture's class is",
        type="str",
    ),
    Need(
        f"{REGISTRY}:_LazyRegisteredModel.class_name",
        "variable",
        "what an architecture's class is called",
        type="str",
    ),
    *(
        Need(
            f"{MODELS}.{module}:{name}.__init__",
            "method",
            "the model's own modules are bound after it",
            ("self", "*", "vllm_config", "prefix", ANY),
        )
        for module, name in (
            ("llama", "LlamaForCausalLM"),
            ("qwen3", "Qwen3ForCausalLM"),
            ("qwen3_moe", "Qwen3MoeForCausalLM"),
            ("deepseek_v2", "DeepseekV2ForCausalLM"),
        )
    ),
)

METHOD_BASE = (
    Need(
        f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase.apply",
        "method",
        "shadowed on a layer's method: experts that are told the top-k",
        TOP_K,
    ),
    Need(
        f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase.apply_monolithic",
        "method",
        "shadowed on a layer's method: experts that route too",
        LOGITS,
    ),
)

COMMON = {
    "worker": WORKER,
    "attention.get_attn_backend_cls": BACKEND_CLS,
    "attention.platform": PLATFORM,
    "attention.layer": LAYER,
    "attention.pluggable_layer": MLA_LAYER,
    "attention.model": tuple(dict.fromkeys((*WHOLE_MODEL, *LAYER))),
    "moe.modular_kernel": MODULAR_KERNEL,
    "moe.register_oot": REGISTER_OOT,
    "moe.pluggable_layer": PLUGGABLE,
    "moe.model": (*WHOLE_MODEL, *METHOD_BASE),
}
"""By "worker" or op and seam; within an op, best first."""
