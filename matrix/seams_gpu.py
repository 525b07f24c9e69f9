#!/usr/bin/env python3
"""Every seam on a GPU: bound and switched off in one process, bit for bit, and seen to have run.

    python matrix/seams_gpu.py --label "torch 2.11 instead of its own pin" --commit HASH

For each way (the seams that are asked for), model and mode (eager; graphs: torch.compile, full CUDA
graphs for decoding and piecewise ones for the rest, vLLM's own default) one process starts an
engine with the plugin passing through, then takes it back (Installation.stand_back) and starts a
stock engine of the same model. Their tokens and logprobs are compared bit by bit. One process more
for each model and mode has the plugin switched off from its start: where it answers unlike the
stock that was taken back to, two starts of stock differ, and the cell says so. In graphs a counter
in each graph tells which layers were replayed (INFERA_REPORT). Writes the "gpu" and "gpu_machine"
parts of <release>.json, which `infera-compat matrix support` takes in.

Models: two layers each, random weights with spread logits; see MODELS.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from infera_compat.matrix import cells
from infera_compat.matrix.ways import ATTENTION, AUTO, MOE, Model, Way
from infera_shims.engines import child, weights

EAGER, GRAPHS = "h200 eager", "h200 graphs"
SIZES: dict[weights.Kind, weights.Shape] = {
    "llama": dataclasses.replace(weights.LLAMA_8B, layers=2),
    "qwen3_moe": dataclasses.replace(weights.QWEN3_30B_A3B, layers=2),
    "deepseek_v2": dataclasses.replace(
        weights.TINY, hidden=2048, heads=16, kv_heads=16, head_size=128, vocab=32000,
        intermediate=4096, experts=16, top_k=2, moe_intermediate=768,
    ),
}  # fmt: skip
MODELS = (
    Model("llama", (ATTENTION,), "dense"),
    Model("qwen3_moe", (ATTENTION, MOE), "MoE"),
    Model("deepseek_v2", (ATTENTION, MOE), "MLA and MoE", optional=True),
)
LATENT = MODELS[2:]
BY_AUTO = ("get_attn_backend_cls", "modular_kernel")
# auto takes get_attn_backend_cls, layer (for MLA) and modular_kernel here: those are not asked for
# again by name. The rest of each is what auto does not do, on the models that have such layers.
SEAMS: tuple[tuple[str, str, tuple[Model, ...]], ...] = (
    (AUTO, AUTO, MODELS),
    ("platform", "register_oot", MODELS[:2]),
    ("layer", "pluggable_layer", MODELS),
    ("pluggable_layer", AUTO, LATENT),
    ("model", "model", MODELS),
)
# (seed, tokens): one block and less, several, and a ragged one.
PROMPTS = ((0, 5), (1, 17), (2, 40), (3, 130), (4, 333), (5, 64), (6, 1), (7, 211))
MAX_TOKENS = 32
# Sizes that the graphs are captured at: decode of these prompts falls on the last.
CAPTURED = [1, 2, 4, 8]
# Two starts of stock round differently where Inductor chooses by what it times faster: what it
# fuses (vLLM asks for it until 0.32, vllm/config/compilation.py), and the block of a reduction
# (rows of 4096 and more have several). Said to vLLM, not by TORCHINDUCTOR_DETERMINISTIC alone,
# which did not reach the kernels of 0.23.0: their metadata said False, and stock differed from
# itself.
UNTIMED = {"combo_kernels": False, "benchmark_combo_kernel": False, "deterministic": True}


def starts(mode: str) -> list[Way]:
    """One start for each model switched off, which is the control, and for each pair of seams."""
    return [Way(None, None, mode, (model,)) for model in MODELS] + [
        Way(attention, moe, mode, (model,)) for attention, moe, models in SEAMS for model in models
    ]


def job(
    way: Way, folder: Path, vocab: dict[str, int], engine: dict[str, Any], *, report: bool
) -> dict[str, Any]:
    """What infera_shims.engines.generate is to do for a way."""
    graphs = {
        "enforce_eager": False,
        "compilation_config": {
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": CAPTURED,
            "inductor_compile_config": UNTIMED,
        },
    }
    # 0.22 would take FlashInfer, which is not here; from 0.23 on Triton is what vLLM picks itself.
    options = {"kernel_config": {"moe_backend": "triton"}} if _release().startswith("0.22") else {}
    return {
        "report": report,
        "models": [
            {
                "name": model.name,
                "path": str(folder / model.name),
                "optional": model.optional,
                "max_tokens": MAX_TOKENS,
                "prompts": [
                    {"token_ids": [5 + (31 * n + 7919 * i * (s + 3)) % (vocab[model.name] - 5)
                                   for i in range(n)]}
                    for s, n in PROMPTS
                ],
                "together": True,
                "engine": {
                    "max_model_len": 1024,
                    "max_num_batched_tokens": 1024,
                    "enable_prefix_caching": False,
                    "kv_cache_memory_bytes": 1 << 30,
                    "gpu_memory_utilization": 0.07,
                    **({"enforce_eager": True} if way.mode == EAGER else graphs),
                    **(options if MOE in model.ops else {}),
                    **engine,
                },
            }
            for model in way.models
        ],
    }  # fmt: skip


def work(question: Path, answer: Path) -> None:
    """A process of its own: the engines of one way; bound, then in the same process taken back."""
    from infera_compat import plugin
    from infera_shims.engines import generate

    jobs = json.loads(question.read_text("utf-8"))
    results: dict[str, Any] = {}
    for name, one in jobs.items():  # "ours" before "stock", or "stock" alone
        if name == "stock" and "ours" in jobs:
            plugin.current().stand_back("taken back, to compare")
            _let_capture_again()
        results[name] = generate.generate(one)
    answer.write_text(json.dumps(results), "utf-8")


def _let_capture_again() -> None:
    """Let the second engine of this process capture graphs, which stock has no provision for.

    Its pool of graphs is one for the process and gone with the first engine's
    (vllm/platforms/interface.py `get_global_graph_pool`); the V1 runner forbids capturing once it
    has captured, for good (vllm/compilation/monitor.py).
    """
    from vllm.compilation.monitor import set_cudagraph_capturing_enabled
    from vllm.platforms import current_platform

    set_cudagraph_capturing_enabled(True)
    for cls in type(current_platform).__mro__:
        if "_global_graph_pool" in vars(cls):
            cls._global_graph_pool = None


def run(
    way: Way, folder: Path, vocab: dict[str, int], engine: dict[str, Any]
) -> dict[str, Any] | str:
    """Run a way's process; its results by name ("ours", "stock"), or why it failed."""
    own = Path(tempfile.mkdtemp(prefix="infera-way-"))
    jobs = {} if way.off else {"ours": job(way, folder, vocab, engine, report=True)}
    jobs["stock"] = job(way, folder, vocab, engine, report=False)
    (own / "jobs.json").write_text(json.dumps(jobs), "utf-8")
    extra = {
        **way.switches,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(own / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
        "TRITON_CACHE_DIR": str(own / "triton"),
        # Inductor chooses reductions by timing them: two starts of stock may differ without it.
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        # cuBLAS promises the same result twice only with a workspace of fixed sizes.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    if not way.off:
        extra["INFERA_REPORT"] = str(own / "report.jsonl")
    done = subprocess.run(
        [sys.executable, __file__, "--work", str(own / "jobs.json"), str(own / "out.json")],
        env=child.environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    about = f"{_release()}-{way.name}-{way.models[0].name}"
    name = "".join(c if c.isalnum() or c in "._" else "-" for c in about)
    log = Path(os.environ.get("OUT", own)) / f"{name}.log"
    log.write_text(done.stdout[-200_000:], "utf-8")
    if done.returncode:
        return "\n".join(done.stdout.splitlines()[-12:])
    results: dict[str, Any] = json.loads((own / "out.json").read_text("utf-8"))
    return results


def main() -> None:
    """Run all ways, print a table, and write the cells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("matrix/results"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "infera-two"))
    parser.add_argument("--commit", default="", help="written into the result")
    parser.add_argument("--label", default="", help="how this differs from the release's own pins")
    parser.add_argument("--jobs", type=int, default=16, help="processes at a time on the GPU")
    parser.add_argument("--modes", nargs="+", default=[GRAPHS, EAGER])
    parser.add_argument("--models", nargs="+", help="models to run, instead of all")
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of LLM, JSON")
    parser.add_argument("--seams", nargs="+", help="attention seams to ask for, instead of all")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this on a CPU")
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    import torch

    sizes = dict.fromkeys(SIZES, weights.TINY) if options.tiny else SIZES
    for kind, shape in sizes.items():
        weights.write_model(kind, options.folder / kind, shape)
    vocab = {str(kind): shape.vocab for kind, shape in sizes.items()}
    todo = [way for mode in options.modes for way in starts(mode)]
    if options.seams:
        todo = [way for way in todo if way.off or way.attention in options.seams]
    if options.models:
        todo = [way for way in todo if way.models[0].name in options.models]
    machine = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none (CPU)",
        "torch": torch.__version__,
        "label": options.label,
        "engine": options.engine,
        "commit": options.commit,
        "release": _release(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "models": {kind: dataclasses.asdict(shape) for kind, shape in sizes.items()},
    }
    outcomes: dict[Way, Any] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {
            pool.submit(run, way, options.folder, vocab, options.engine): way for way in todo
        }
        for done in as_completed(running):
            way = running[done]
            outcomes[way] = done.result()
            if not way.off:
                show(judge(way, outcomes))
            # After each: a run that is cut short has shown what it has.
            found = [cell for way in todo if way in outcomes for cell in judge(way, outcomes)]
            write(options.out / f"{_release()}.json", {"gpu_machine": machine, "gpu": found})


def show(found: list[dict[str, Any]]) -> None:
    """Print cells, a line each."""
    for cell in found:
        about = f"{cell['mode']:12}{cell['model']:12}{cell['op']:10}{cell['seam']:22}"
        fired = f"{cell['fired']}/{cell['bound']} of {cell['layers']}"
        print(
            f"{about}{cell['status']:16}{fired}, replayed {cell.get('replayed')}, stock again "
            f"{cell['control']}  {(cell['reason'] or '')[:160]}",
            flush=True,
        )


def write(file: Path, body: dict[str, Any]) -> None:
    """Put `body` into a release's result, and leave the rest of it."""
    before = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**before, **body}, indent=1) + "\n", "utf-8")


def judge(way: Way, outcomes: dict[Way, Any]) -> list[dict[str, Any]]:
    """The cells of a way: bound against the same process taken back, and the control."""
    if way.off:
        return []
    outcome = outcomes[way]
    alike = (way.mode, way.models)
    off = next((outcomes[w] for w in outcomes if w.off and (w.mode, w.models) == alike), None)
    if isinstance(outcome, str):
        found = list(cells.of_way(way, {m.name: {} for m in way.models}, outcome))
    else:
        found = list(cells.of_way(way, outcome["stock"]["models"], outcome["ours"]["models"]))
    rows = []
    for cell in [*found, *_taken_by_auto(found)]:
        row = {**dataclasses.asdict(cell), "control": _control(cell.model, outcome, off)}
        if cell.status == cells.FAILED and not isinstance(outcome, str):
            row["reason"] = f"{cell.reason} ({_first_difference(outcome, cell.model)})"
            if row["control"] is False:
                row["status"] = cells.STOCK_DIFFERS
        if way.mode == GRAPHS and cell.bound and not isinstance(outcome, str):
            row["replayed"] = _replayed(outcome["ours"]["models"][cell.model], cell)
            if cell.status == cells.EQUAL and not row["replayed"]:
                row |= {"status": cells.FAILED, "reason": "no graph that was replayed holds it"}
        rows.append(row)
    return rows


def _taken_by_auto(found: list[cells.Cell]) -> list[cells.Cell]:
    """The cells of the seams that auto took: binding them is the same code."""
    return [
        dataclasses.replace(cell, seam=cell.by[0], reason="taken by auto")
        for cell in found
        if cell.seam == AUTO and len(cell.by) == 1 and cell.by[0] in BY_AUTO
    ]


def _first_difference(outcome: dict[str, Any], model: str) -> str:
    """Where two runs of a model part: at token 0 it is the prefill, later a decoding step."""
    ours, stock = (outcome[name]["models"][model].get("requests", []) for name in ("ours", "stock"))
    places = [
        (place, number)
        for number, (here, there) in enumerate(zip(ours, stock, strict=False))
        for place, pair in enumerate(zip(here["logprobs"], there["logprobs"], strict=False))
        if pair[0] != pair[1]
    ]
    if not places:
        return "logprobs are equal"
    place, number = min(places)
    requests = len({number for _, number in places})
    return f"first at token {place} of request {number}; {requests} of {len(ours)} requests differ"


def _replayed(model: dict[str, Any], cell: cells.Cell) -> int:
    """Replays of graphs that hold a bound layer, of that layer which had the fewest."""
    bound = [
        layer
        for report in model["reports"]
        for layer in report["layers"]
        if layer["op"] == cell.op and layer["bound"] and cell.seam in (AUTO, layer["seam"])
    ]
    return min(layer["calls"]["replayed"] or 0 for layer in bound)


def _control(model: str, outcome: Any, off: Any) -> bool | None:
    """Whether stock of this process answered as stock of another; None where that is not known."""
    if isinstance(outcome, str) or not isinstance(off, dict):
        return None
    here, there = (x["stock"]["models"][model].get("requests") for x in (outcome, off))
    return None if here is None or there is None else bool(here == there)


def _release() -> str:
    from infera_compat.release import installed

    found = installed()
    return "unknown" if found is None else found.text.partition("+")[0]


if __name__ == "__main__":
    main()
