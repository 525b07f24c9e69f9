"""Generate greedily with a stock vLLM, and write down all that two runs can differ in.

    python -m infera_shims.engines.generate JOB.json OUT.json

JOB::

    {"report": bool,                  ask the workers for the plugin's report (default false)
     "models": [{"name": str,
                 "path": str,
                 "prompts": [{"token_ids": [int]} | {"chat": str}],
                 "max_tokens": int,   of each request (default 24)
                 "together": bool,    all requests at once; else one after the other
                 "optional": bool,    its failure is a result, and ends nothing (default false)
                 "engine": {}}]}      arguments of vllm.LLM, over `ENGINE`

A prompt of token ids runs to max_tokens, a chat ends where the model ends it. Requests of an
engine core in another process arrive while it already steps, so batches differ from run to run:
they go one after the other there by default, and together where the core is in this process.

OUT::

    {"vllm": str, "torch": str, "python": str, "import_s": float,
     "models": {name: {"requests": [{"ids": [int],
                                     "logprobs": [{token id: float.hex()}],   one a position
                                     "text": str | null}],
                       "start_s": float, "generate_s": float,
                       "layers": {layer name: {"layer", "impl", "quant_method", "experts",
                                               "instance_attributes": [str]}} | null,
                       "reports": [{}]}
                | {"error": str}}}    of an optional model: the exception's class and text

`layers` gives class paths (null where a layer has no such part) and the methods that an instance
hides with an attribute of its own, as "experts.apply"; it is null where the model is in another
process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ENGINE: Mapping[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "enforce_eager": True,
    "seed": 0,
}

MAX_TOKENS = 24
TOP_LOGPROBS = 5
REPORT_METHOD = "infera_report"

PARTS: Mapping[str, tuple[str, ...]] = {
    "impl": ("impl",),
    "quant_method": ("quant_method", "routed_experts.quant_method"),
    "experts": (
        "quant_method.moe_kernel.fused_experts",
        "routed_experts.quant_method.moe_kernel.fused_experts",
        "quant_method.cpu_fused_moe",
    ),
}
"""Where the parts of a layer of the forward context lie; the first that exists counts. The MoE
layer there is FusedMoE up to 0.23 and MoERunner from 0.24
(vllm/model_executor/layers/fused_moe/layer.py, runner/moe_runner.py); `cpu_fused_moe` is the CPU's
up to 0.27 (unquantized_fused_moe_method.py)."""


def generate(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run all models of a job, one engine after the other, and return the results."""
    began = time.monotonic()
    import vllm
    from vllm import LLM as _  # noqa: F401  the package loads its members when they are asked for

    import_s = time.monotonic() - began
    results = {}
    for number, model in enumerate(job["models"], start=1):
        print(f"generate: model {number}/{len(job['models'])}, {model['name']}", flush=True)
        results[model["name"]] = _result(model, job.get("report", False))
    return {
        "vllm": vllm.__version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "import_s": import_s,
        "models": results,
    }


def _result(model: Mapping[str, Any], report: bool) -> dict[str, Any]:
    try:
        return _run_model(model, report)
    except Exception as error:
        if not model.get("optional", False):
            raise
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _run_model(model: Mapping[str, Any], report: bool) -> dict[str, Any]:
    from vllm import LLM

    prompts = model["prompts"]
    chats = any("chat" in prompt for prompt in prompts)
    began = time.monotonic()
    llm = LLM(
        model=model["path"],
        **{
            **ENGINE,
            **_worker(),
            "skip_tokenizer_init": not chats,
            **model.get("engine", {}),
        },
    )
    try:
        started = time.monotonic()
        requests = _requests(llm, model, chats)
        generated = time.monotonic()
        return {
            "requests": requests,
            "start_s": started - began,
            "generate_s": generated - started,
            "layers": _layers(llm),
            "reports": llm.collective_rpc(REPORT_METHOD) if report else [],
        }
    finally:
        # Ends worker processes, or the model, its cache and the process groups in this process;
        # the next engine needs both. LLM itself has no public way to do so.
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def _worker() -> dict[str, str]:
    """The engine argument that chooses `infera_shims.engines.worker` where stock needs it."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    path = Path(vllm.__file__).with_name("model_executor") / "layers/fused_moe/cpu_fused_moe.py"
    if current_platform.is_cpu() and path.exists() and not torch.cpu._is_avx512_supported():
        return {"worker_cls": "infera_shims.engines.worker.ConfiguredCPUWorker"}
    return {}


def _requests(llm: Any, model: Mapping[str, Any], tokenized: bool) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    inputs, parameters = [], []
    for prompt in model["prompts"]:
        chat = "chat" in prompt
        inputs.append({"prompt_token_ids": _chat_ids(llm, prompt["chat"])} if chat else
                      {"prompt_token_ids": prompt["token_ids"]})  # fmt: skip
        parameters.append(
            SamplingParams(
                temperature=0.0,
                max_tokens=model.get("max_tokens", MAX_TOKENS),
                ignore_eos=not chat,
                logprobs=TOP_LOGPROBS,
                detokenize=tokenized,
            )
        )
    if model.get("together", core_is_here()):
        outputs = llm.generate(inputs, parameters, use_tqdm=False)
    else:
        outputs = [
            output
            for pair in zip(inputs, parameters, strict=True)
            for output in llm.generate(*pair, use_tqdm=False)
        ]
    return [_request(output.outputs[0], tokenized) for output in outputs]


def core_is_here() -> bool:
    """Whether vLLM puts the engine core into this process (vllm/envs.py; on by default)."""
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0"


def _chat_ids(llm: Any, text: str) -> list[int]:
    ids: list[int] = llm.get_tokenizer().apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,  # transformers 5 returns a mapping by default
    )
    return ids


def _request(completion: Any, tokenized: bool) -> dict[str, Any]:
    return {
        "ids": list(completion.token_ids),
        "logprobs": [
            {str(token): float(entry.logprob).hex() for token, entry in position.items()}
            for position in completion.logprobs
        ],
        "text": completion.text if tokenized else None,
    }


def _layers(llm: Any) -> dict[str, Any] | None:
    context = llm.llm_engine.vllm_config.compilation_config.static_forward_context
    if not context:
        return None
    return {name: _layer(layer) for name, layer in context.items()}


def _layer(layer: Any) -> dict[str, Any]:
    parts = {name: _first(layer, paths) for name, paths in PARTS.items()}
    hidden = [
        f"{name}.{attribute}"
        for name, part in parts.items()
        if part is not None
        for attribute in _own_methods(part)
    ]
    return {
        "layer": _class_path(layer),
        **{name: None if part is None else _class_path(part) for name, part in parts.items()},
        "instance_attributes": hidden,
    }


def _first(layer: Any, paths: tuple[str, ...]) -> Any:
    for path in paths:
        part = layer
        for name in path.split("."):
            if part is None or not hasattr(part, name):
                part = None
                break
            part = getattr(part, name)
        if part is not None:
            return part
    return None


def _own_methods(part: Any) -> Iterator[str]:
    for name, value in vars(part).items():
        if callable(value) and hasattr(type(part), name):
            yield name


def _class_path(part: Any) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def main() -> None:
    """Read a job, run it, write its results."""
    parser = argparse.ArgumentParser(prog="python -m infera_shims.engines.generate")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    results = generate(json.loads(options.job.read_text("utf-8")))
    # Under another name first: who finds the file finds all of it.
    partial = options.out.with_name(options.out.name + ".partial")
    partial.write_text(json.dumps(results), "utf-8")
    partial.replace(options.out)


if __name__ == "__main__":
    main()
