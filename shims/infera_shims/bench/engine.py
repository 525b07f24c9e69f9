"""One engine of a bench, in a process of its own: it answers questions, a line of JSON each.

    python -m infera_shims.bench.engine serve JOB      (questions on stdin)
    python -m infera_shims.bench.engine write MODEL    (random weights, onto the disk)

See infera_compat/bench/engines.py for who asks. Times of a request are vLLM's own
(vllm/v1/metrics/stats.py `RequestStateStats`, clocks of the engine core, every release).
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from infera_shims.engines import weights

ANSWER = "ANSWER "
GIB = 1 << 30


class Server:
    """A vLLM engine with its own defaults: CUDA graphs, and torch.compile before them."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        """Start it. job: model, longest, kv_gib, requests, backend, eager, tokenizer, ours."""
        began = time.monotonic()
        from vllm import LLM

        self._ours: bool = job["ours"]
        self._on_gpu = torch.cuda.is_available()
        options: dict[str, Any] = {}
        if job["backend"] is not None:
            from vllm.v1.attention.backends.registry import AttentionBackendEnum

            options["attention_backend"] = AttentionBackendEnum[job["backend"]]
        if self._on_gpu:
            # Room for both engines of a pair, with caches of one size.
            options["kv_cache_memory_bytes"] = int(job["kv_gib"] * GIB)
            options["gpu_memory_utilization"] = 0.4
        self.llm: Any = LLM(
            model=job["model"],
            skip_tokenizer_init=not job["tokenizer"],
            enforce_eager=job["eager"],
            dtype="bfloat16",
            max_model_len=job["longest"],
            max_num_seqs=job["requests"],
            enable_prefix_caching=False,
            disable_log_stats=False,
            seed=0,
            **options,
        )
        self.start_s = time.monotonic() - began

    def facts(self) -> dict[str, Any]:
        """What the engine is, and the most memory that it has taken so far."""
        config = self.llm.llm_engine.vllm_config
        context = config.compilation_config.static_forward_context.values()
        found = [layer for layer in context if hasattr(layer, "attn_backend")]
        # Without the plugin no worker has a report.
        reports = self.llm.collective_rpc("infera_report") if self._ours else []
        bound = [x for report in reports for x in report["layers"] if x["kernel"]]
        return {
            "start_s": self.start_s,
            "peak_gib": torch.cuda.max_memory_reserved() / GIB if self._on_gpu else 0.0,
            "vocab": config.model_config.hf_config.vocab_size,
            "attention": found[0].attn_backend.get_name() if found else None,
            "bound": [
                {name: layer[name] for name in ("layer", "over", "kernel", "calls")}
                for layer in bound[:1]
            ]
            + [{"layers": len(bound)}],
        }

    def time(self, prompts: Sequence[Sequence[int]], new: Sequence[int]) -> dict[str, Any]:
        """Tokens a second of all requests at once; medians of the times to and after the first."""
        began = time.perf_counter()
        outputs = self._generate(prompts, new, None)
        seconds = time.perf_counter() - began
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        stats = [output.metrics for output in outputs]
        after = [
            (one.last_token_ts - one.first_token_ts) / (len(tokens) - 1)
            for one, tokens in zip(stats, ids, strict=True)
            if len(tokens) > 1
        ]
        return {
            "tok_s": sum(map(len, ids)) / seconds,
            "ttft_ms": 1e3 * statistics.median(x.first_token_ts - x.queued_ts for x in stats),
            "tpot_ms": 1e3 * statistics.median(after),
            "ids": ids,
        }

    def compare(
        self, prompts: Sequence[Sequence[int]], chats: Sequence[str], new: int
    ) -> list[dict[str, Any]]:
        """Each request's tokens, and the logprob of each."""
        asked = [*prompts, *(self._chat(text) for text in chats)]
        outputs = self._generate(asked, [new] * len(asked), 1)
        return [
            {
                "ids": list(done.token_ids),
                "logprobs": [
                    float(place[token].logprob)
                    for token, place in zip(done.token_ids, done.logprobs, strict=True)
                ],
            }
            for done in (output.outputs[0] for output in outputs)
        ]

    def _generate(
        self, prompts: Sequence[Sequence[int]], new: Sequence[int], logprobs: int | None
    ) -> Any:
        from vllm import SamplingParams

        parameters = [
            SamplingParams(
                temperature=0,
                max_tokens=tokens,
                ignore_eos=True,
                logprobs=logprobs,
                detokenize=False,
            )
            for tokens in new
        ]
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        return self.llm.generate(inputs, parameters, use_tqdm=False)

    def _chat(self, text: str) -> list[int]:
        ids: list[int] = self.llm.get_tokenizer().apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,  # transformers 5 returns a mapping by default
        )
        return ids


def serve(job: Mapping[str, Any]) -> None:
    """Answer questions until stdin ends."""
    server = Server(job)
    for line in sys.stdin:
        question = json.loads(line)
        do = question.pop("do")
        answer: Any
        if do == "facts":
            answer = server.facts()
        elif do == "time":
            answer = server.time(**question)
        else:
            answer = server.compare(**question)
        print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


def write(model: Mapping[str, Any]) -> None:
    """Write a model's random weights, unless they lie there; drawn on a GPU where there is one."""
    shape = dataclasses.replace(
        weights.SHAPES[model["shape"]],
        layers=model["layers"],
        max_position=max(model["longest"], weights.SHAPES[model["shape"]].max_position),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights.write_model(model["kind"], Path(model["folder"]), shape, device=device)


def main() -> None:
    """Do what the command line says."""
    work: dict[str, Callable[[Mapping[str, Any]], None]] = {"serve": serve, "write": write}
    work[sys.argv[1]](json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
