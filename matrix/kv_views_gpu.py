#!/usr/bin/env python3
"""Where K and V lie in the KV caches of the installed release: probed, backend by backend.

    python matrix/kv_views_gpu.py --out kv-views.json              # on a GPU, stock's own kernels
    python matrix/kv_views_gpu.py --stand-ins --out kv-views.json  # without: stock's Python only

No engine starts: a backend's implementation is made by itself, its cache tensor by the release's
own code, in each layout that the backend takes, and infera_shims.seams.kv_views.probe holds what
stock's update writes against the known regimes. One row for each: `proved` (one regime explains
every element), `fits` (so it does, but a stand-in wrote them), `refused` (none may be read, and
why), `not run` (with the error). Nothing is fatal.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import os
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from infera_compat.errors import Refused
from infera_shims.seams.kv_views import live, probe, regimes, tensors, update, views
from infera_shims.seams.kv_views.tensors import Sizes

REGISTRY = "vllm.v1.attention.backends.registry"
RANK, ROPE = 512, 64
# Blocks, slots, heads, channels: no two alike, and primes where stock leaves the choice.
PLAIN = (
    Sizes(blocks=7, block_size=16, kv_heads=3, head_size=64),
    Sizes(blocks=11, block_size=48, kv_heads=5, head_size=128),
)
LATENT = (
    Sizes(blocks=7, block_size=64, kv_heads=1, head_size=RANK + ROPE, mla=True),
    Sizes(blocks=5, block_size=32, kv_heads=1, head_size=RANK + ROPE, mla=True),
)
LATENT_16 = (Sizes(blocks=7, block_size=16, kv_heads=1, head_size=RANK + ROPE, mla=True),)
CPU = (
    Sizes(blocks=7, block_size=16, kv_heads=3, head_size=64),
    Sizes(blocks=11, block_size=96, kv_heads=5, head_size=128),
)
CASES: dict[str, tuple[Sizes, ...]] = {
    "FLASH_ATTN": PLAIN,
    "TRITON_ATTN": PLAIN,
    "FLEX_ATTENTION": PLAIN,
    "FLASHINFER": PLAIN,
    "TRITON_MLA": LATENT,
    "FLASH_ATTN_MLA": LATENT,
    "FLASHMLA": LATENT[:1],
    "CPU_ATTN": CPU,
    "CPU_MLA": LATENT_16,
    "AMX_MLA": LATENT[1:],
    "ROCM_ATTN": PLAIN,
    "ROCM_AITER_FA": PLAIN,
    "ROCM_AITER_UNIFIED_ATTN": PLAIN,
}
ON_GPU = ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "FLASHINFER")
ON_GPU = (*ON_GPU, "TRITON_MLA", "FLASH_ATTN_MLA", "FLASHMLA")
ON_CPU = ("CPU_ATTN", "CPU_MLA", "AMX_MLA")
MLA_ARGUMENTS = {
    "q_lora_rank": None,
    "kv_lora_rank": RANK,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": ROPE,
    "qk_head_dim": 128 + ROPE,
    "v_head_dim": 128,
    "kv_b_proj": None,
}


def make_impl(backend: Any, sizes: Sizes, dtype: Any) -> tuple[Any, str]:
    """A backend's implementation, and whether its constructor made it.

    A constructor that wants what is not here (a kernel for another GPU, a model) is left out: the
    update of most backends uses nothing of it, and the row says so.
    """
    cls = backend.get_impl_cls()
    heads = 4 * sizes.kv_heads if not sizes.mla else 16
    decoder = importlib.import_module("vllm.v1.attention.backend").AttentionType.DECODER
    plain = {
        "num_heads": heads,
        "head_size": sizes.head_size,
        "scale": sizes.head_size**-0.5,
        "num_kv_heads": sizes.kv_heads,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
        "logits_soft_cap": None,
        "attn_type": decoder,
        "kv_sharing_target_layer_name": None,
    }
    try:
        return cls(**plain, **(MLA_ARGUMENTS if sizes.mla else {})), "constructed"
    except Exception as error:  # noqa: BLE001
        # Whatever it wants: an attribute that the update does read shows up as the update failing.
        impl = object.__new__(cls)
        vars(impl).update(plain)
        if sizes.mla:
            impl.kv_lora_rank = RANK
        return impl, f"bare ({type(error).__name__}: {error})"[:300]


def make_layer(sizes: Sizes, dtype: Any, device: Any) -> Any:
    """What an update reads of its layer: scales of one, and the CPU's instruction set."""
    torch = importlib.import_module("torch")
    one = torch.ones((), dtype=torch.float32, device=device)
    layer = SimpleNamespace(
        layer_name="probed", _k_scale=one, _v_scale=one, _k_scale_float=1.0, _v_scale_float=1.0
    )
    if torch.device(device).type == "cpu":
        cpu_attn = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
        layer.isa = cpu_attn._get_attn_isa(dtype, sizes.block_size, sizes.head_size, "auto")
    return layer


def caches(
    name: str, backend: Any, sizes: Sizes, dtype: Any, device: Any
) -> Iterator[tuple[str, Any]]:
    """The cache tensors in which stock can give this backend a layer's cache, by their layout."""
    if tensors.has_specs():
        spec = tensors.spec_for(backend, sizes, dtype)
        for layout in tensors.layouts(backend):
            cache = tensors.by_spec(spec, layout, sizes.blocks, device)
            yield layout.name, tensors.bound(cache, sizes)
        padded = dataclasses.replace(spec, page_size_padded=spec.page_size_bytes + 512)
        compact = [layout for layout in tensors.layouts(backend) if layout.is_block_compact]
        for layout in compact[:1]:
            cache = tensors.by_spec(padded, layout, sizes.blocks, device)
            yield f"{layout.name}, padded pages", tensors.bound(cache, sizes)
        return
    utils = importlib.import_module("vllm.v1.attention.backends.utils")
    required = backend.get_required_kv_cache_layout()
    for layout in (required,) if required or sizes.mla else ("NHD", "HND"):
        utils.set_kv_cache_layout(layout)
        try:
            yield str(layout), tensors.by_shape(backend, sizes, dtype, device)
            try:
                padded = tensors.by_shape(backend, sizes, dtype, device, page_padding=256)
            except ValueError:
                continue  # K and V outermost: stock pads no such pages
            yield f"{layout}, padded pages", padded
        finally:
            utils.set_kv_cache_layout(None)


def rows(name: str, release: str, dtype: Any, device: Any, proved: str) -> Iterator[dict[str, Any]]:
    """The rows of one backend; `proved` is the status where a regime explains every element."""
    minor = tuple(int(part) for part in release.split(".")[:2])
    expected = regimes.expected(name, minor)
    told = None if expected is None else expected.regime and expected.regime.name
    for sizes in CASES[name]:
        base = {"backend": name, "sizes": dataclasses.asdict(sizes), "expected": told}
        try:
            member = getattr(importlib.import_module(REGISTRY).AttentionBackendEnum, name, None)
            if member is None:
                yield {**base, "status": "not run", "reason": "not in this release"}
                return
            backend = member.get_class()
            known_as = regimes.name_of(backend)
            impl, how = make_impl(backend, sizes, dtype)
            layer = make_layer(sizes, dtype, device)
            if torch_cpu(device) and not hasattr(impl, "isa") and hasattr(layer, "isa"):
                impl.isa = layer.isa
            write = update.writer(impl, layer)
            for layout, cache in caches(name, backend, sizes, dtype, device):
                row = {
                    **base,
                    "known_as": known_as,
                    "layout": layout,
                    "impl": how,
                    "shape": list(cache.shape),
                    "strides": list(cache.stride()),
                }
                try:
                    found = probe.probe(known_as, cache, sizes, write)
                    yield {**row, "status": proved, "regime": found.name}
                except probe.UpdateFailed as failed:
                    yield {**row, "status": "not run", "reason": str(failed)}
                except Refused as refused:
                    yield {**row, "status": "refused", "reason": str(refused)}
        except Exception as error:  # noqa: BLE001 (the other rows go on)
            where = traceback.extract_tb(error.__traceback__)[-1]
            yield {
                **base,
                "status": "not run",
                "reason": f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
            }


def live_rows(kind: str, release: str, backend: str | None) -> Iterator[dict[str, Any]]:
    """The rows of a real engine's layers, probed in its worker: one layer of each shape.

    backend: the one that the engine is told to take; None: its own choice. Its layout is stock's,
    or what the environment's VLLM_KV_CACHE_LAYOUT says.
    """
    weights = importlib.import_module("infera_shims.engines.weights")
    llm_class = importlib.import_module("vllm").LLM
    on_gpu = importlib.import_module("torch").cuda.is_available()
    extra: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 30} if on_gpu else {}
    if backend:
        extra["attention_backend"] = backend
    with tempfile.TemporaryDirectory() as folder:
        llm = llm_class(
            model=str(weights.write_model(kind, Path(folder, kind), weights.TINY)),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=4,
            gpu_memory_utilization=0.15 if on_gpu else 0.5,
            **extra,
        )
        (found,) = llm.collective_rpc(in_worker)
    minor = tuple(int(part) for part in release.split(".")[:2])
    for row in found:
        expected = regimes.expected(row["backend"], minor)
        yield {**row, "expected": expected and expected.regime and expected.regime.name}


def in_worker(worker: Any) -> list[dict[str, Any]]:
    """Probe the worker's layers; run in it."""
    found = []
    seen = set()
    for name, layer in worker.vllm_config.compilation_config.static_forward_context.items():
        cache = getattr(layer, "kv_cache", None)
        if not hasattr(layer, "impl") or not hasattr(cache, "stride"):
            continue
        key = (type(layer.impl), tuple(cache.shape), tuple(cache.stride()))
        if key in seen:
            continue
        seen.add(key)
        row = {
            "backend": regimes.name_of(layer.attn_backend),
            "layout": f"live, {name}",
            "shape": list(cache.shape),
            "strides": list(cache.stride()),
        }
        try:
            small, _, _ = live.beside(layer, worker.vllm_config)
            row |= {"small_shape": list(small.shape), "small_strides": list(small.stride())}
            apart = small.untyped_storage().data_ptr() != cache.untyped_storage().data_ptr()
            row |= {"alike": alike(cache, small), "apart": apart}
            regime = live.probe_layer(layer, worker.vllm_config)
            row |= {"status": "proved", "regime": regime.name}
        except probe.UpdateFailed as failed:
            row |= {"status": "not run", "reason": str(failed)}
        except Refused as refused:
            row |= {"status": "refused", "reason": str(refused)}
        found.append(row)
    return found


def alike(cache: Any, small: Any) -> bool:
    """Whether a small cache is like the real one in some regime: shape, order, element type."""
    for regime in regimes.REGIMES.values():
        if len(regime.seen) == small.dim():
            try:
                views.alike(cache, small, regime)
            except Refused:
                continue
            return True
    return False


def torch_cpu(device: Any) -> bool:
    """Whether this is a CPU."""
    return str(device).startswith("cpu")


def main() -> None:
    """Probe, print a line a row, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--backends", nargs="+", choices=CASES)
    parser.add_argument("--stand-ins", action="store_true", help="no GPU: see kv_stand_ins.py")
    parser.add_argument(
        "--interpret", action="store_true", help="no GPU: Triton's kernels by its interpreter"
    )
    parser.add_argument(
        "--live",
        metavar="KIND",
        help="a real engine's layers: llama, deepseek_v2 (its backend: --backends NAME)",
    )
    options = parser.parse_args()
    began = time.monotonic()
    if options.interpret:
        # An empty list of GPUs is how vLLM lets Triton be there without an active driver.
        os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    if options.live:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    import vllm
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    device = "cuda" if torch.cuda.is_available() else "cpu"
    leaf, proved = "stock", "proved"
    if options.interpret:
        # Asked for a tile size only.
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        leaf = "stock, by Triton's interpreter"
    if options.stand_ins:
        importlib.import_module("kv_stand_ins").install()
        leaf, proved = "stand-in", "fits"
    names = options.backends or (
        [name for name in CASES if name not in ON_CPU]
        if options.stand_ins
        else ["TRITON_ATTN"]
        if options.interpret
        else ON_CPU
        if device == "cpu"
        else ON_GPU
    )
    dtype = torch.bfloat16

    def made(names: Sequence[str]) -> Iterator[dict[str, Any]]:
        config = VllmConfig(device_config=DeviceConfig(device=device))
        config.model_config = SimpleNamespace(
            dtype=dtype, is_encoder_decoder=False, is_diffusion=False
        )
        config.cache_config.block_size = PLAIN[0].block_size
        with set_current_vllm_config(config), torch.inference_mode():
            for name in names:
                yield from rows(name, vllm.__version__, dtype, device, proved)

    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "release": vllm.__version__,
        "torch": torch.__version__,
        "device": "CPU" if device == "cpu" else torch.cuda.get_device_name(),
        "kernels": leaf,
        "dtype": str(dtype),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "rows": found,
    }
    for row in (
        live_rows(options.live, vllm.__version__, (options.backends or [None])[0])
        if options.live
        else made(names)
    ):
        row["as_expected"] = row["status"] == "not run" or row.get("regime") == row["expected"]
        found.append(row)
        print(
            f"{result['release']} {row['backend']} {row.get('layout', '')}: {row['status']} "
            f"{row.get('regime') or row.get('reason', '')}"[:400],
            flush=True,
        )
        # After each row: a crash in a kernel leaves what was found before it.
        if options.out:
            result["seconds"] = round(time.monotonic() - began, 1)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    counts = Counter(row["status"] for row in found)
    odd = [f"{row['backend']} {row.get('layout', '')}" for row in found if not row["as_expected"]]
    print(
        f"{result['release']}: {', '.join(f'{n} {status}' for status, n in counts.items())}; "
        f"other than the table says: {', '.join(odd) or 'none'}"
    )


if __name__ == "__main__":
    main()
