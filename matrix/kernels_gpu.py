#!/usr/bin/env python3
"""The reference kernels in real engines on a GPU, beside stock: text, logprobs, who ran.

    python matrix/kernels_gpu.py --commit HASH --label "torch 2.11 instead of its own pin"

For each model and mode (eager; graphs: torch.compile, full CUDA graphs for decoding, piecewise ones
for the rest) one process generates with stock vLLM and one with the kernel asked for by name, in
float16. The weights are random, so a request's two best tokens may lie nearer than stock rounds: a
text that parts from stock's counts as rounding only where stock's own logprobs of the two tokens
were within BOUND. Logprobs before that place are held to BOUND too; where a router chose another
expert of two that it held for alike, some leave it, at most FEW of them. Writes
<out>/kernels-h200-<release>.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import seams_gpu

from infera_compat.matrix.ways import Way
from infera_shims.engines import child, generate, weights

BOUND = 0.03
"""Of logprobs, absolute: float16 rounds logits of about 10 to 0.008. Seen on a CPU: 0.008."""
FEW = 0.05
KERNELS = {
    "llama": {"INFERA_ATTENTION": "reference_attention"},
    "qwen3_moe": {"INFERA_ATTENTION": "reference_attention", "INFERA_MOE": "reference_experts"},
    "deepseek_v2": {"INFERA_ATTENTION": "reference_mla_decode", "INFERA_MOE": "reference_experts"},
}
OFF = {"INFERA_VLLM_OPS_DISABLE": "1"}
OPS = {"INFERA_ATTENTION": "attention", "INFERA_MOE": "moe"}


def run(way: Way, folder: Path, vocab: dict[str, int], switches: dict[str, str]) -> Any:
    """One process; its model's results, or why it failed."""
    own = Path(tempfile.mkdtemp(prefix="infera-kernel-"))
    report = switches is not OFF
    question = seams_gpu.job(way, folder, vocab, {"dtype": "float16"}, report=report)
    (own / "job.json").write_text(json.dumps(question), "utf-8")
    env = child.environment(
        **switches,
        **({"INFERA_REPORT": str(own / "report.jsonl")} if report else {}),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CACHE_ROOT=str(own / "vllm"),
        TORCHINDUCTOR_CACHE_DIR=str(own / "inductor"),
        TRITON_CACHE_DIR=str(own / "triton"),
    )
    done = subprocess.run(
        [sys.executable, __file__, "--work", str(own / "job.json"), str(own / "out.json")],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        return "\n".join(done.stdout.splitlines()[-14:])
    return json.loads((own / "out.json").read_text("utf-8"))["models"][way.models[0].name]


def compare(stock: Any, ours: Any, asked: dict[str, str]) -> dict[str, Any]:
    """What two runs of a model have in common, and whether the kernels ran."""
    for name, outcome in (("stock", stock), ("ours", ours)):
        if isinstance(outcome, str) or "error" in outcome:
            return {"status": "failed", "reason": f"{name}: {outcome}"}
    same, off, gaps = 0, [], []
    for there, here in zip(stock["requests"], ours["requests"], strict=True):
        parted = next(
            (i for i, (a, b) in enumerate(zip(there["ids"], here["ids"], strict=True)) if a != b),
            None,
        )
        same += parted is None
        for place in range(len(here["ids"]) if parted is None else parted):
            one, two = there["logprobs"][place], here["logprobs"][place]
            for token in one.keys() & two.keys():
                off.append(abs(float.fromhex(one[token]) - float.fromhex(two[token])))
        if parted is not None:
            one = {t: float.fromhex(x) for t, x in there["logprobs"][parted].items()}
            token = str(here["ids"][parted])
            gaps.append(max(one.values()) - one[token] if token in one else None)
    bound = [layer for report in ours["reports"] for layer in report["layers"] if layer["kernel"]]
    calls = [layer["calls"] for layer in bound]
    ran = [c["serving"] + (c["replayed"] or 0) for c in calls]
    missing = {OPS[k] for k in asked} - {layer["op"] for layer in bound}
    beyond = sum(x > BOUND for x in off)
    routed = any(layer["op"] == "moe" for layer in ours["reports"][0]["layers"])
    near = beyond <= (FEW * len(off) if routed else 0)
    near = near and sum(gap is None or gap > BOUND for gap in gaps) <= (1 if routed else 0)
    return {
        "status": "equal" if near and ran and min(ran) and not missing else "failed",
        "requests": len(stock["requests"]),
        "same_text": same,
        "logprobs": len(off),
        "worst_logprob": max(off, default=None),
        "beyond_bound": beyond,
        "gaps_where_parted": gaps,
        "layers": [f"{layer['op']} {layer['layer']}: {layer['kernel']}" for layer in bound],
        "serving": [c["serving"] for c in calls],
        "replayed": [c["replayed"] for c in calls],
        "handed_to_stock": [c["handed"] for c in calls],
        "reason": f"no layer of {', '.join(missing)}" if missing else None,
    }


def main() -> None:
    """Run all models and modes, print a line each, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("matrix/results"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "infera-two"))
    parser.add_argument("--commit", default="", help="written into the result")
    parser.add_argument("--label", default="", help="how this differs from the release's own pins")
    parser.add_argument("--jobs", type=int, default=12, help="processes at a time on the GPU")
    parser.add_argument("--modes", nargs="+", default=[seams_gpu.EAGER, seams_gpu.GRAPHS])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try this on a CPU")
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        question, answer = options.work
        answer.write_text(json.dumps(generate.generate(json.loads(question.read_text()))), "utf-8")
        return
    import torch

    sizes = dict.fromkeys(seams_gpu.SIZES, weights.TINY) if options.tiny else seams_gpu.SIZES
    for kind, shape in sizes.items():
        weights.write_model(kind, options.folder / kind, shape)
    vocab = {str(kind): shape.vocab for kind, shape in sizes.items()}
    ways = [Way(None, None, mode, (model,)) for mode in options.modes for model in seams_gpu.MODELS]
    with ThreadPoolExecutor(options.jobs) as pool:
        pairs = {
            way: [
                pool.submit(run, way, options.folder, vocab, switches)
                for switches in (OFF, KERNELS[way.models[0].name])
            ]
            for way in ways
        }
        rows = []
        for way, (stock, ours) in pairs.items():
            model = way.models[0].name
            asked = KERNELS[model]
            row = {"mode": way.mode, "model": model, "kernels": asked}
            rows.append(row | compare(stock.result(), ours.result(), asked))
            print(json.dumps(rows[-1]), flush=True)
    body = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none (CPU)",
        "torch": torch.__version__,
        "label": options.label,
        "release": seams_gpu._release(),
        "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "dtype": "float16",
        "bound": BOUND,
        "models": {kind: dataclasses.asdict(shape) for kind, shape in sizes.items()},
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"kernels-h200-{body['release']}.json"
    file.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
