"""Whole engines beside each other: which models, under which loads, and what a pair of runs gave.

The engines of a pair, stock and ours, start together on one GPU and work in turns: while one
generates, the other waits. Imports neither vLLM nor torch: the engines are processes of their own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infera_compat.bench.cells import FLASH, TRITON
from infera_compat.errors import CompatError
from infera_compat.settings import DISABLE, KERNEL_TABLE
from infera_shims.engines import child

MODULE = "infera_shims.bench.engine"
ANSWER = "ANSWER "
LAST_LINES = 60
ROUNDS = 3
VOCAB_FROM = 5
"""Token ids below are special ones."""
SEED = 20261130
STOCK, OURS = "stock", "ours"
FIGURES = ("tok_s", "ttft_ms", "tpot_ms")
"""What a round gives; a cell has the median of its rounds."""


@dataclass(frozen=True)
class Load:
    """Requests that come at once. name: what a cell calls it. lengths: prompt tokens and tokens to
    generate, of each."""

    name: str
    requests: tuple[tuple[int, int], ...]

    @property
    def batch(self) -> int:
        """How many requests."""
        return len(self.requests)

    @property
    def tokens(self) -> int:
        """The tokens that the longest ones fill, all together."""
        return sum(prompt + new for prompt, new in self.requests)


@dataclass(frozen=True)
class Model:
    """A model with random weights, or SmolLM2's real ones (kind None).

    kind, shape, layers: as infera_shims.engines.weights has them. longest: tokens of a request, at
    most. kv_gib: of the cache that each engine gets. pairs: the kernels and the stock backends that
    they are bound over (None: what vLLM picks, which has no name of a backend).
    """

    name: str
    kind: str | None
    shape: str
    layers: int
    longest: int
    kv_gib: float
    loads: tuple[Load, ...]
    pairs: tuple[tuple[str, str | None], ...]


def even(name: str, batch: int, prompt: int, new: int) -> Load:
    """Requests that are all alike in size."""
    return Load(name, ((prompt, new),) * batch)


def mixed(batch: int, longest: int) -> Load:
    """Requests of all sizes: prompts are cut into chunks that run beside what decodes already."""
    draw = random.Random(SEED)
    sizes = ((draw.randint(200, longest), draw.randint(64, 256)) for _ in range(batch))
    return Load("chunked prefill, mixed", tuple(sizes))


DECODED = 128
ATTENTION_PAIRS = (("infera_decode", FLASH), ("infera_attention", TRITON))
LLAMA_LOADS = (
    *(even("1k context", batch, 1024, DECODED) for batch in (1, 2, 8, 64)),
    # 64 requests of 16k tokens do not fit beside the weights: 137 GB of keys and values.
    *(even("16k context", batch, 16384, DECODED) for batch in (1, 2, 8)),
    mixed(32, 8000),
)
MOE_LOADS = tuple(
    even(name, batch, prompt, new)
    for name, prompt, new in (("prefill-heavy", 2000, 16), ("decode-heavy", 64, 256))
    for batch in (2, 64)
)
MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("llama-3-8b", "llama", "llama-8b", 32, 16640, 24, LLAMA_LOADS, ATTENTION_PAIRS),
        Model(
            "qwen3-30b-a3b",
            "qwen3_moe",
            "qwen3-30b-a3b",
            16,
            4096,
            8,
            MOE_LOADS,
            (("infera_experts", None),),
        ),
        Model(
            "smollm2-135m",
            None,
            "",
            30,
            4096,
            6,
            tuple(even("1k context", batch, 1024, DECODED) for batch in (1, 8, 64)),
            ATTENTION_PAIRS,
        ),
    )
}
TINY: Mapping[str, Model] = {
    "tiny-llama": Model(
        "tiny-llama",
        "llama",
        "tiny",
        2,
        256,
        0.0,
        (even("short", 2, 20, 6), Load("mixed", ((40, 4), (9, 7)))),
        (("reference_attention", None),),
    )
}
"""For a rehearsal on a CPU."""

# For real weights: what is asked when texts are compared.
QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a river.",
    "How do I boil an egg?",
    "What is 17 plus 25?",
    "Name three planets of the solar system.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "Tell me a story about a lost dog.",
    "Why do leaves fall in autumn?",
    "Translate 'good morning' into Spanish.",
)
COMPARED = tuple((length, 48) for length in (5, 17, 64, 130, 333, 512, 700, 1000))
"""Prompts whose logprobs are compared, and tokens to generate; shorter where a model is."""


@dataclass(frozen=True)
class Side:
    """One engine. variables: of its environment. backend: of attention, that vLLM is told to take;
    None: it picks."""

    name: str
    variables: Mapping[str, str]
    backend: str | None


def sides(kernel: str, backend: str | None, op: str, table: Path | None) -> tuple[Side, Side]:
    """Stock, and the same with a kernel asked for by name.

    op: attention or moe. table: a preference table in place of the kernel's own.
    """
    told = {f"INFERA_{op.upper()}": kernel}
    told |= {} if table is None else {KERNEL_TABLE: str(table.absolute())}
    # FlashAttention is what vLLM picks by itself where it can: that is left to it.
    forced = backend if backend == TRITON else None
    return Side(STOCK, {DISABLE: "1"}, forced), Side(OURS, told, forced)


class Engine:
    """An engine in a process of its own, asked by lines of JSON."""

    def __init__(self, side: Side, model: Model, folder: Path, eager: bool, own: Path) -> None:
        """Start it; `ask` waits until it is there. own: a folder for its compiled code alone."""
        own.mkdir(parents=True)
        job = {
            "model": str(folder),
            "longest": model.longest,
            "kv_gib": model.kv_gib,
            "requests": max(load.batch for load in model.loads),
            "backend": side.backend,
            "eager": eager,
            "tokenizer": model.kind is None,
            "ours": side.name == OURS,
        }
        self._name = f"{side.name} of {model.name}"
        self._log: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "serve", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=child.environment(
                **side.variables,
                VLLM_ENABLE_V1_MULTIPROCESSING="0",
                VLLM_CACHE_ROOT=str(own / "vllm"),
                TORCHINDUCTOR_CACHE_DIR=str(own / "inductor"),
                TRITON_CACHE_DIR=str(own / "triton"),
            ),
        )

    def ask(self, do: str, **question: Any) -> Any:
        """The answer to one question; CompatError with its last lines where it died."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            self._process.stdin.write(json.dumps({"do": do, **question}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last lines say why it is gone
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
            self._log.append(line)
        raise CompatError(
            f"the engine {self._name} ended",
            found="".join(self._log[-LAST_LINES:]),
            expected="an engine that serves",
            do="Mend what its last lines say.",
        )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def prompts(load: Sequence[tuple[int, int]], vocab: int, seed: int) -> list[list[int]]:
    """Random prompts of a load's lengths."""
    draw = random.Random(f"{SEED} {seed}")
    return [[draw.randrange(VOCAB_FROM, vocab) for _ in range(length)] for length, _ in load]


def pair(
    model: Model,
    backend: str | None,
    engines: Mapping[str, Engine],
    skip: Sequence[str],
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """A cell for each load of a pair of engines that are starting.

    backend: the stock backend that both are to have. skip: the names of loads that need not run
    (see `name`). Raises CompatError where an engine ends, or took another backend.
    """
    facts = {side: engine.ask("facts") for side, engine in engines.items()}
    for side, told in facts.items():
        if backend is not None and told["attention"] != backend:
            raise CompatError(
                f"{side} of {model.name} is no engine to compare",
                found=f"attention by {told['attention']}",
                expected=backend,
                do="Measure over what vLLM picks here, by --baseline.",
            )
    vocab = int(facts[STOCK]["vocab"])
    compared = compare(model, engines, vocab)
    for load in model.loads:
        if name(model, load) in skip:
            continue
        new = [tokens for _, tokens in load.requests]
        for engine in engines.values():  # once unmeasured
            engine.ask("time", prompts=prompts(load.requests, vocab, 0), new=new)
        found: dict[str, list[Any]] = {side: [] for side in engines}
        for number in range(1, rounds + 1):
            fresh = prompts(load.requests, vocab, number)
            for side, engine in engines.items():
                found[side].append(engine.ask("time", prompts=fresh, new=new))
        same = [
            a == b
            for one, two in zip(found[STOCK], found[OURS], strict=True)
            for a, b in zip(one["ids"], two["ids"], strict=True)
        ]
        ended = {side: engine.ask("facts") for side, engine in engines.items()}
        yield {
            "name": name(model, load),
            "model": model.name,
            "load": load.name,
            "batch": load.batch,
            "prompt_tokens": sum(prompt for prompt, _ in load.requests),
            "new_tokens": sum(new),
            "rounds": rounds,
            "rounds_alternate": True,
            "started_together": True,
            **{
                side: {
                    **{
                        figure: statistics.median(one[figure] for one in found[side])
                        for figure in FIGURES
                    },
                    "start_s": facts[side]["start_s"],
                    "peak_gib": ended[side]["peak_gib"],
                    "attention": facts[side]["attention"],
                }
                for side in engines
            },
            "same_text": sum(same),
            "prompts": len(same),
            "distinct_tokens": len({i for one in found[STOCK] for ids in one["ids"] for i in ids}),
            "compared": compared,
            "bound_layers": ended[OURS]["bound"],
            "tp": 1,
        }


def compare(model: Model, engines: Mapping[str, Engine], vocab: int) -> dict[str, Any]:
    """The texts of both engines, and the logprobs up to where they part."""
    sizes = [(min(n, model.longest - 64), new) for n, new in COMPARED]
    asked = prompts(sizes, vocab, -1)
    chats = QUESTIONS if model.kind is None else ()
    stock, ours = (
        engine.ask("compare", prompts=asked, chats=chats, new=COMPARED[0][1])
        for engine in engines.values()
    )
    same, off = 0, []
    for one, two in zip(stock, ours, strict=True):
        same += one["ids"] == two["ids"]
        for token, other, first, second in zip(
            one["ids"], two["ids"], one["logprobs"], two["logprobs"], strict=False
        ):
            if token != other:
                break
            off.append(abs(first - second))
    return {
        "prompts": len(stock),
        "same_text": same,
        "logprobs": len(off),
        "worst_logprob": max(off, default=None),
        "median_logprob": statistics.median(off) if off else None,
    }


def name(model: Model, load: Load) -> str:
    """What tells a cell from all others of a kernel and a backend."""
    return f"{model.name} {load.name} batch {load.batch}"


def written(model: Model, folder: Path, source: Path | None) -> Path:
    """The model's folder: written once, in a process of its own, on the GPU where there is one.

    source: SmolLM2's folder (infera_shims.engines.smollm2). Raises CompatError where it is not
    given, and where the weights can't be written.
    """
    if model.kind is None:
        if source is None or not (source / "config.json").is_file():
            raise CompatError(
                f"{model.name} has real weights, which are not here",
                found=str(source),
                expected="the folder that python -m infera_shims.engines.smollm2 FOLDER wrote",
                do="Give --smollm2 FOLDER.",
            )
        return source
    target = folder / f"{model.name}-{model.layers}"
    job = {**dataclasses.asdict(model), "folder": str(target)}
    try:
        child.spawn(MODULE, ["write", json.dumps(job)], child.environment(**{DISABLE: "1"}))
    except child.ChildError as error:
        raise CompatError(
            f"the weights of {model.name} can't be written",
            found=str(error),
            expected=f"room for them in {folder}",
            do="Give another --folder.",
        ) from error
    return target


def own_folder(folder: Path, side: Side) -> Path:
    """A folder that no other engine has."""
    return folder / f"{side.name}-{os.getpid()}-{random.SystemRandom().randrange(10**9)}"
