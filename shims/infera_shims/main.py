"""The newest releases and main: 0.24 and later, as far as their contracts hold.

Read on 0.32.0 and 0.33.0. What an older line has otherwise stands in that line's module.
"""

from __future__ import annotations

from infera_compat.contracts import ANY, Need
from infera_shims.shim import ELSEWHERE, Shim

FUSED_MOE = "vllm.model_executor.layers.fused_moe"

WORKER = (
    Need(
        "worker",
        "vllm.v1.worker.worker_base:WorkerBase.__init__",
        "method",
        "a worker that is being made is where a model will be built",
        ("self", "vllm_config", ANY),
    ),
    Need(
        "worker",
        "vllm.v1.worker.worker_base:WorkerBase.load_model",
        "method",
        "the layers are taken down after it",
        ("self", ANY),
    ),
    Need(
        "worker",
        "vllm.v1.worker.worker_base:WorkerBase.execute_model",
        "method",
        "a step that serves, told from one that profiles",
        ("self", "scheduler_output"),
    ),
    Need(
        "worker",
        "vllm.v1.worker.worker_base:WorkerBase.sample_tokens",
        "method",
        "the second half of a step (drafters run in it)",
        ("self", "grammar_output"),
    ),
    Need(
        "worker",
        "vllm.v1.worker.worker_base:WorkerBase.compile_or_warm_up_model",
        "method",
        "steps in it serve nobody",
        ("self",),
    ),
    Need(
        "worker",
        "vllm.v1.core.sched.output:SchedulerOutput.total_num_scheduled_tokens",
        "variable",
        "a step without tokens serves nothing",
    ),
    Need(
        "worker",
        "vllm.config.compilation:CompilationConfig.static_forward_context",
        "variable",
        "the model's attention and MoE layers by name",
    ),
    Need(
        "worker",
        "vllm.envs:environment_variables",
        "variable",
        "its values enter the compile key",
    ),
)

ATTENTION = (
    Need(
        "attention",
        "vllm.platforms.interface:Platform.get_attn_backend_cls",
        "classmethod",
        "wrapped on the active platform's class",
        ("cls", "selected_backend", "attn_selector_config", "num_heads"),
    ),
    Need(
        "attention",
        "vllm.platforms:builtin_platform_plugins",
        "variable",
        "tells the stock platform that InferaPlatform stands on",
    ),
    Need(
        "attention",
        "vllm.v1.attention.selector:_cached_get_attn_backend",
        "function",
        "asks the platform; its cache is emptied when the answer changes",
        ("backend", "attn_selector_config", "num_heads", ANY),
    ),
    Need(
        "attention",
        "vllm.v1.attention.selector:AttentionSelectorConfig.use_mla",
        "variable",
        "MLA layers run forward_mqa and forward_mha, which this seam does not take",
    ),
    Need(
        "attention",
        "vllm.utils.import_utils:resolve_obj_by_qualname",
        "function",
        "imports the class that the platform names",
        ("qualname",),
    ),
    Need(
        "attention",
        "vllm.v1.attention.backend:AttentionBackend.get_impl_cls",
        "staticmethod",
        "overridden in the subclass of the stock backend",
        (),
    ),
    Need(
        "attention",
        "vllm.v1.attention.backend:AttentionImpl.forward",
        "method",
        "overridden in the subclass of the stock implementation",
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
    ),
    Need(
        "attention",
        "vllm.model_executor.layers.attention.attention:Attention",
        "class",
        "its impl runs the kernel",
    ),
    *(
        Need(
            "attention",
            f"vllm.model_executor.layers.attention.attention:Attention.{name}",
            "attribute",
            why,
        )
        for name, why in (
            ("impl", "an instance of our subclass, where the layer is bound"),
            ("attn_backend", "names the stock backend"),
            ("layer_name", "its calls are counted under this name"),
        )
    ),
    Need(
        "attention",
        "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase",
        "class",
        "what every attention layer is, ours to cover or not",
    ),
)

MODULAR_KERNEL = (
    Need(
        "moe",
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernel.__init__",
        "method",
        "every modular kernel is made here",
        ("self", "prepare_finalize", "fused_experts"),
    ),
    Need(
        "moe",
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernelModularImpl",
        "class",
        "tells a modular kernel from a monolithic one",
    ),
    Need(
        "moe",
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernel.impl",
        "attribute",
        "modular or monolithic",
    ),
    Need(
        "moe",
        f"{FUSED_MOE}.modular_kernel:FusedMoEKernelModularImpl.fused_experts",
        "attribute",
        "the experts object whose apply is shadowed",
    ),
    Need(
        "moe",
        f"{FUSED_MOE}.fused_moe_method_base:FusedMoEMethodBase.moe_kernel",
        "attribute",
        "tells which layer a kernel serves",
    ),
    Need(
        "moe",
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

MOE_LAYER = (
    Need(
        "moe",
        f"{FUSED_MOE}.runner.moe_runner:MoERunner",
        "class",
        "a MoE layer, in static_forward_context",
    ),
    Need(
        "moe",
        f"{FUSED_MOE}.routed_experts:RoutedExperts",
        "class",
        "holds the layer's quantisation method",
        decorator="routed_experts",
    ),
)

SHIM = Shim(
    name="main",
    first=(0, 24),
    needs=(*WORKER, *ATTENTION, *MODULAR_KERNEL, *MOE_LAYER),
    # From 0.30 on the CPU's experts are modular too. On 0.28 and 0.29 they are monolithic: nothing
    # binds there, and the report says so.
    moe_seams={ELSEWHERE: "modular_kernel"},
    moe_layer=f"{FUSED_MOE}.runner.moe_runner:MoERunner",
    moe_method="routed_experts.quant_method",
)
