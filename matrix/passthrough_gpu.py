#!/usr/bin/env python3
"""What the plugin costs on a GPU when it changes nothing: it off against it passing through.

    python matrix/passthrough_gpu.py --out matrix/results/passthrough-h200-0.23.0.json

For each model and mode (eager; graphs: torch.compile and CUDA graphs) it starts stock vLLM with the
kill switch thrown and passing through, twice each, on the same GPU at the same time, and lets them
work in turns: one generates while the others wait. Tokens and logprobs are compared bit by bit. Two
starts of the same vLLM differ by a percent or two in speed, so the second off engine is the control
of the first, and each round's ratio is that of the two pairs' geometric means. The graphs mode has
one engine more, no part of the price: bound by InferaPlatform, it counts what its graphs replay
(INFERA_REPORT), which shows that the bound code is in them. Each engine has compile caches of its
own. Inductor chooses reduction kernels by timing them, so two starts of the same stock vLLM may
round differently; --inductor deterministic, the default here, takes that away, but not all: stock
0.23.0 was seen to come out in one of two roundings a start (64 requests, graphs). So `outcomes` has
each engine's own hash: what a passing-through start gives must be what some off start gives.

Models: random weights with spread logits, written by infera_shims.engines.weights.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infera_shims.engines import child, weights

PASSING = {"INFERA_ATTENTION": "passthrough", "INFERA_MOE": "passthrough", "INFERA_STRICT": "1"}
OFF = {"INFERA_VLLM_OPS_DISABLE": "1"}
TIMED = {"off": OFF, "passthrough": PASSING, "off again": OFF, "passthrough again": PASSING}
COUNTED = "counted"
VARIANTS = {**TIMED, COUNTED: {**PASSING, "INFERA_ATTENTION_SEAM": "platform"}}
ANSWER = "ANSWER "
# (requests at once, prompt tokens, tokens to generate)
LOADS = {1: (128, 96), 64: (128, 64)}
TINY_LOADS = {1: (16, 32), 8: (16, 16)}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to measure: its kind, sizes, and what the report calls it."""

    name: str
    kind: weights.Kind
    shape: weights.Shape


MODELS = {
    "dense": Model("llama-8b-16-layers", "llama", dataclasses.replace(weights.LLAMA_8B, layers=16)),
    "moe": Model(
        "qwen3-30b-a3b-8-layers",
        "qwen3_moe",
        dataclasses.replace(weights.QWEN3_30B_A3B, layers=8),
    ),
}
TINY = {
    "dense": Model("tiny-llama", "llama", weights.TINY),
    "moe": Model("tiny-qwen3-moe", "qwen3_moe", weights.TINY),
}


class Engine:
    """A vLLM engine in a process of its own, asked by lines of JSON."""

    def __init__(self, folder: Path, mode: str, variant: str, tiny: bool, inductor: str) -> None:
        """Start it; `ask` waits until it is there."""
        self.variant = variant
        own = tempfile.mkdtemp(prefix="infera-")
        extra = {
            **VARIANTS[variant],
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": own,
            "TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor",
            "TRITON_CACHE_DIR": f"{own}/triton",
            "TORCHINDUCTOR_DETERMINISTIC": "1" if inductor == "deterministic" else "0",
        }
        if variant == COUNTED:
            extra["INFERA_REPORT"] = f"{own}/report.jsonl"
        command = [sys.executable, __file__, "--serve", str(folder), "--modes", mode]
        self._log: list[str] = []
        self._process = subprocess.Popen(
            [*command, "--tiny"] if tiny else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=child.environment(**extra),
        )

    def ask(self, **question: Any) -> Any:
        """The answer to one question; its log on stderr where it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
            self._log.append(line)
            if "infera-compat" in line:
                print(f"    {self.variant}: {line.rstrip()}", flush=True)
        sys.exit(f"engine {self.variant} died:\n" + "".join(self._log[-60:]))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def serve(folder: Path, mode: str, tiny: bool) -> None:
    """The engine's side: answer questions until stdin ends."""
    import torch
    from vllm import LLM, SamplingParams

    on_gpu = torch.cuda.is_available()
    options: dict[str, Any] = (
        {"kv_cache_memory_bytes": 6 << 30, "gpu_memory_utilization": 0.15} if on_gpu else {}
    )
    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=mode == "eager",
        dtype="bfloat16",
        max_model_len=512 if tiny else 2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
        seed=0,
        **options,
    )

    def generate(prompts: list[list[int]], tokens: int, logprobs: int | None) -> Any:
        parameters = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=logprobs, detokenize=False
        )
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        return [o.outputs[0] for o in llm.generate(inputs, parameters, use_tqdm=False)]

    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        answer: Any = None
        if question["do"] == "compare":
            answer = [
                {
                    "ids": list(o.token_ids),
                    "logprobs": [
                        {str(t): float(e.logprob).hex() for t, e in place.items()}
                        for place in o.logprobs
                    ],
                }
                for o in generate(question["prompts"], question["tokens"], 5)
            ]
        elif question["do"] == "time":
            done = generate(question["prompts"], question["tokens"], None)
            answer = sum(len(o.token_ids) for o in done) / (time.perf_counter() - began)
        elif question["do"] == "report":
            answer = llm.collective_rpc("infera_report")
        elif question["do"] == "facts":
            import vllm

            answer = {
                "gpu": torch.cuda.get_device_name() if on_gpu else "none (CPU)",
                "release": vllm.__version__,
                "torch": torch.__version__,
            }
        print(ANSWER + json.dumps(answer), flush=True)


def prompts(batch: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    """`batch` prompts of about `length` random tokens; uneven, as a server's are."""
    draw = random.Random(seed)
    return [
        [draw.randrange(5, vocab) for _ in range(max(1, length - draw.randrange(length // 2)))]
        for _ in range(batch)
    ]


def measure(
    model: Model, folder: Path, mode: str, tiny: bool, repeats: int, inductor: str
) -> list[dict[str, Any]]:
    """The cells of one model in one mode: equality, what fired, and the paired speeds."""
    names = VARIANTS if mode == "graphs" else TIMED
    engines = {name: Engine(folder, mode, name, tiny, inductor) for name in names}
    with ThreadPoolExecutor() as pool:
        facts, *_ = pool.map(lambda engine: engine.ask(do="facts"), engines.values())
    cells = []
    for batch, (length, tokens) in (TINY_LOADS if tiny else LOADS).items():
        asked = prompts(batch, length, model.shape.vocab, seed=batch)
        compared = {
            name: engine.ask(do="compare", prompts=asked, tokens=48)
            for name, engine in engines.items()
        }
        stock = compared["off"]
        for name in TIMED:  # once unmeasured
            engines[name].ask(do="time", prompts=asked, tokens=tokens)
        speeds: dict[str, list[float]] = {name: [] for name in TIMED}
        for repeat in range(repeats):
            fresh = prompts(batch, length, model.shape.vocab, seed=1000 + repeat)
            order = list(TIMED)
            random.Random(repeat).shuffle(order)
            for name in order:
                speeds[name].append(engines[name].ask(do="time", prompts=fresh, tokens=tokens))
        off, passing = _means(speeds, "off"), _means(speeds, "passthrough")
        ratios = [p / o for o, p in zip(off, passing, strict=True)]
        control = [b / a for a, b in zip(speeds["off"], speeds["off again"], strict=True)]
        cells.append(
            {
                "model": model.name,
                "mode": mode,
                "batch": batch,
                "prompt_tokens": length,
                "new_tokens": tokens,
                "inductor": inductor if mode == "graphs" else None,
                "equal": all(compared[name] == stock for name in names if VARIANTS[name] != OFF),
                "control_equal": compared["off again"] == stock,
                "outcomes": {name: _hash(answers) for name, answers in compared.items()},
                "values_compared": sum(6 * len(request["ids"]) for request in stock),
                "distinct_tokens": len({i for request in stock for i in request["ids"]}),
                "off_tok_s": statistics.median(off),
                "passthrough_tok_s": statistics.median(passing),
                "ratio": statistics.median(ratios),
                "ratio_quartiles": statistics.quantiles(ratios, n=4),
                "control_ratio": statistics.median(control),
                "rounds": repeats,
            }
        )
    witness = engines[COUNTED if COUNTED in names else "passthrough"]
    layers = witness.ask(do="report")[0]["layers"]
    bound = [layer for layer in layers if layer["bound"]]
    fired = [x for x in bound if x["calls"]["serving"] or x["calls"]["replayed"]]
    for cell in cells:
        cell["fired"] = len(fired)
        cell["bound"] = len(bound)
        cell["layers"] = len(layers)
        cell["calls_per_layer"] = {
            op: [x["calls"] for x in layers if x["op"] == op][:1] for op in ("attention", "moe")
        }
        cell |= facts
    for engine in engines.values():
        engine.close()
    return cells


def _hash(answers: Any) -> str:
    """A name for what an engine answered: all tokens and logprobs, to the bit."""
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()[:8]


def _means(speeds: dict[str, list[float]], name: str) -> list[float]:
    """Each round's geometric mean over the two engines of a kind."""
    pairs = zip(speeds[name], speeds[f"{name} again"], strict=True)
    return [(first * second) ** 0.5 for first, second in pairs]


def main() -> None:
    """Measure, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("passthrough.json"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--modes", nargs="+", choices=["eager", "graphs"], default=["eager", "graphs"]
    )
    parser.add_argument("--repeats", type=int, default=15, help="rounds a cell")
    parser.add_argument("--inductor", choices=["deterministic", "default"], default="deterministic")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this on a CPU")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "infera-models"))
    parser.add_argument("--commit", default="", help="written into the result")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.modes[0], options.tiny)
        return
    if options.write:
        model = (TINY if options.tiny else MODELS)[options.models[0]]
        device = "cpu" if options.tiny else "cuda"
        weights.write_model(model.kind, options.write, model.shape, device=device)
        return
    cells: list[dict[str, Any]] = []
    for key in options.models:
        model = (TINY if options.tiny else MODELS)[key]
        began = time.monotonic()
        folder = options.folder / model.name
        # In a process of its own, which gives the GPU's memory back.
        write = [sys.executable, __file__, "--write", str(folder), "--models", key]
        subprocess.run([*write, "--tiny"] if options.tiny else write, check=True)
        print(f"{model.name}: written in {time.monotonic() - began:.0f} s", flush=True)
        for mode in options.modes:
            cells += measure(model, folder, mode, options.tiny, options.repeats, options.inductor)
            for cell in cells[-2:]:
                print(
                    f"  {mode} batch {cell['batch']}: equal {cell['equal']} "
                    f"(two starts of stock: {cell['control_equal']}; "
                    f"{cell['values_compared']} values, "
                    f"{cell['distinct_tokens']} tokens), fired {cell['fired']}/{cell['bound']} of "
                    f"{cell['layers']}, off {cell['off_tok_s']:.0f} tok/s, passthrough "
                    f"{cell['passthrough_tok_s']:.0f}, ratio {cell['ratio']:.4f}, quartiles "
                    + " ".join(f"{q:.3f}" for q in cell["ratio_quartiles"])
                    + f", off again/off {cell['control_ratio']:.3f}",
                    flush=True,
                )
            # After each mode: a run that is cut short has shown what it has.
            options.out.write_text(json.dumps(result(cells, options.commit), indent=1) + "\n")


def result(cells: list[dict[str, Any]], commit: str) -> dict[str, Any]:
    """The result file's contents: the machine's facts once, then the cells."""
    shared = ("gpu", "release", "torch")
    return {
        **{key: cells[0][key] for key in shared},
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cells": [{k: v for k, v in cell.items() if k not in shared} for cell in cells],
    }


if __name__ == "__main__":
    main()
