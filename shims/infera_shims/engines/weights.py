"""Models with random weights on disk, in the layout of a Hugging Face checkpoint.

Names, shapes and configuration fields are those that vLLM's loaders read
(vllm/model_executor/models/llama.py, qwen3.py, qwen3_moe.py, deepseek_v2.py); nothing but torch
and safetensors is needed to write them. The weights are scaled so that the logits spread: greedy
tokens then differ between prompts and between positions, which a comparison of two runs relies on.

    python -m infera_shims.engines.weights qwen3_moe FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from safetensors.torch import save_file

Kind = Literal["llama", "qwen3", "qwen3_moe", "deepseek_v2"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ARCHITECTURES: dict[Kind, str] = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
}

MOE: tuple[Kind, ...] = ("qwen3_moe", "deepseek_v2")

DENSE_FIRST = 1
"""Decoder layers of a deepseek_v2 with a dense MLP; those after them have experts."""

RECIPE = "recipe.json"
"""What a finished folder was made from. Written last, so its presence means that all is there."""

FORMAT = 1
"""Raised when the same arguments start to give other weights."""

SHARD_BYTES = 4 << 30

LINEAR_GAIN = 1.6
"""A linear weight has this standard deviation over sqrt(fan-in), so unit inputs give this one."""

NORM_SPREAD = 0.05


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a decoder.

    Attributes:
        layers: decoder layers.
        hidden: width H of the residual stream.
        heads: query heads Hq.
        kv_heads: key and value heads Hkv; divides `heads` (deepseek_v2 has none of its own: all
            heads unfold from one latent vector).
        head_size: D, elements of one head (need not be H / Hq). In deepseek_v2, of the part of a
            query or key head that is not rotated, and of a value head.
        vocab: tokens; input and output embeddings are separate.
        intermediate: width of a dense MLP (llama, qwen3, the first layer of deepseek_v2).
        experts: experts E of a layer (`MOE`); deepseek_v2 has one more, which all tokens share.
        top_k: experts a token goes to (`MOE`).
        moe_intermediate: width N of one expert (`MOE`).
        latent: elements of the compressed keys and values of a token (deepseek_v2).
        rotated: elements of the rotated part of a query head, and of the one key part that all
            heads share (deepseek_v2).
        rope_theta: base of the rotary embedding.
        max_position: longest sequence, tokens.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    intermediate: int
    experts: int = 0
    top_k: int = 0
    moe_intermediate: int = 0
    latent: int = 0
    rotated: int = 0
    rope_theta: float = 10000.0
    max_position: int = 2048


TINY = Shape(
    layers=2,
    hidden=256,
    heads=4,
    kv_heads=2,
    head_size=64,
    vocab=512,
    intermediate=512,
    experts=8,
    top_k=2,
    moe_intermediate=256,
    latent=512,
    rotated=64,
)
"""Starts in seconds on a CPU; good for all kinds. vLLM's MLA kernels know a latent part of 512 and
a rotated one of 64, and little else."""

LLAMA_8B = Shape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_size=128,
    vocab=128256,
    intermediate=14336,
    rope_theta=500000.0,
    max_position=8192,
)
"""The sizes of Llama-3-8B: 8.0e9 parameters, 16 GB."""

QWEN3_30B_A3B = Shape(
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_size=128,
    vocab=151936,
    intermediate=6144,
    experts=128,
    top_k=8,
    moe_intermediate=768,
    rope_theta=1000000.0,
    max_position=40960,
)
"""The sizes of Qwen3-30B-A3B: 1.25 GB a layer and 1.2 GB of embeddings. Fewer layers by
`dataclasses.replace(QWEN3_30B_A3B, layers=8)`."""

SHAPES: dict[str, Shape] = {
    "tiny": TINY,
    "llama-8b": LLAMA_8B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
}


class Weight(NamedTuple):
    """One tensor of a checkpoint: its name, its sizes, and how its values are drawn."""

    name: str
    sizes: tuple[int, ...]
    mean: float
    deviation: float

    @property
    def size_bytes(self) -> int:
        """Bytes in bfloat16."""
        elements = 1
        for size in self.sizes:
            elements *= size
        return 2 * elements


def write_model(kind: Kind, folder: Path, shape: Shape, seed: int = 0, device: str = "cpu") -> Path:
    """Write config.json and bfloat16 safetensors of a randomly initialised model.

    Models above 4 GiB are split into shards with an index. The values depend on kind, shape, seed
    and the type of device (the generators of CPU and CUDA differ).

    Args:
        kind: one of `KINDS`.
        folder: where the model is to lie; a finished one of the same recipe is left as it is.
        shape: its sizes.
        seed: of the random generator.
        device: torch device on which the values are drawn.

    Returns:
        `folder`.

    Raises:
        ValueError: `shape` cannot make a model of this kind.
        FileExistsError: `folder` holds something that this function did not write.
    """
    config = configuration(kind, shape)
    recipe = {
        "format": FORMAT,
        "kind": kind,
        "shape": dataclasses.asdict(shape),
        "seed": seed,
        "device": torch.device(device).type,
    }

    def build(target: Path) -> None:
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        _write_shards(target, list(weights(kind, shape)), seed, device)

    return build_folder(folder, recipe, build)


def configuration(kind: Kind, shape: Shape) -> dict[str, Any]:
    """The config.json of a model, as Hugging Face names the fields.

    Raises:
        ValueError: the kind is unknown, or `shape` cannot make a model of it.
    """
    if kind not in ARCHITECTURES:
        raise ValueError(f"unknown kind of model {kind!r}; known: {', '.join(KINDS)}")
    if shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} query heads cannot share {shape.kv_heads} key heads")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind == "llama":
        config["mlp_bias"] = False
    if kind in MOE and (not 0 < shape.top_k <= shape.experts or shape.moe_intermediate <= 0):
        raise ValueError(
            f"{kind} needs 0 < top_k <= experts and moe_intermediate > 0, found "
            f"top_k={shape.top_k}, experts={shape.experts}, "
            f"moe_intermediate={shape.moe_intermediate}"
        )
    if kind == "deepseek_v2":
        if shape.latent <= 0 or shape.rotated <= 0:
            raise ValueError(
                "deepseek_v2 needs latent > 0 and rotated > 0, found "
                f"latent={shape.latent}, rotated={shape.rotated}"
            )
        del config["head_dim"]  # a head's parts have sizes of their own
        config |= {
            "num_key_value_heads": shape.heads,
            "q_lora_rank": None,
            "kv_lora_rank": shape.latent,
            "qk_nope_head_dim": shape.head_size,
            "qk_rope_head_dim": shape.rotated,
            "v_head_dim": shape.head_size,
            "first_k_dense_replace": DENSE_FIRST,
            "moe_layer_freq": 1,
            "n_routed_experts": shape.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.moe_intermediate,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        }
    if kind == "qwen3_moe":
        config |= {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.moe_intermediate,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def weights(kind: Kind, shape: Shape) -> Iterator[Weight]:
    """Every tensor of a checkpoint, in the order in which its values are drawn."""
    yield Weight("model.embed_tokens.weight", (shape.vocab, shape.hidden), 0.0, 1.0)
    for index in range(shape.layers):
        layer = f"model.layers.{index}"
        yield _norm(f"{layer}.input_layernorm", shape.hidden)
        attention = _latent_attention if kind == "deepseek_v2" else _attention
        yield from attention(f"{layer}.self_attn", kind, shape)
        yield _norm(f"{layer}.post_attention_layernorm", shape.hidden)
        if kind not in MOE or (kind == "deepseek_v2" and index < DENSE_FIRST):
            yield from _mlp(f"{layer}.mlp", shape.hidden, shape.intermediate)
            continue
        yield _linear(f"{layer}.mlp.gate", shape.experts, shape.hidden)
        for expert in range(shape.experts):
            yield from _mlp(f"{layer}.mlp.experts.{expert}", shape.hidden, shape.moe_intermediate)
        if kind == "deepseek_v2":
            yield from _mlp(f"{layer}.mlp.shared_experts", shape.hidden, shape.moe_intermediate)
    yield _norm("model.norm", shape.hidden)
    yield _linear("lm_head", shape.vocab, shape.hidden)


def build_folder(folder: Path, recipe: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """Make `folder` once: built under another name beside it, then renamed.

    Args:
        folder: the finished place. One with an equal recipe is reused, one with another recipe
            is replaced.
        recipe: everything that the contents depend on; must survive JSON.
        build: writes the contents into the folder that it is given.

    Raises:
        FileExistsError: `folder` is not empty and has no recipe, so it is somebody else's.
    """
    folder = folder.absolute()
    if _recipe_of(folder) == recipe:
        return folder
    _refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh = workplace / "new"
        fresh.mkdir()
        build(fresh)
        (fresh / RECIPE).write_text(json.dumps(recipe, indent=2) + "\n", "utf-8")
        if _recipe_of(folder) == recipe:  # another process was faster
            return folder
        _refuse_foreign(folder)
        if (folder / RECIPE).exists():
            folder.rename(workplace / "old")
        try:
            fresh.rename(folder)
        except OSError:
            if _recipe_of(folder) != recipe:
                raise
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return folder


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not (folder / RECIPE).exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} is not empty and holds no {RECIPE}: it was not written here, and is left "
            "alone. Name another folder, or remove this one."
        )


def _recipe_of(folder: Path) -> Any:
    try:
        return json.loads((folder / RECIPE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _linear(name: str, rows: int, columns: int) -> Weight:
    return Weight(f"{name}.weight", (rows, columns), 0.0, LINEAR_GAIN / columns**0.5)


def _norm(name: str, size: int) -> Weight:
    return Weight(f"{name}.weight", (size,), 1.0, NORM_SPREAD)


def _attention(name: str, kind: Kind, shape: Shape) -> Iterator[Weight]:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    yield _linear(f"{name}.q_proj", queries, shape.hidden)
    yield _linear(f"{name}.k_proj", keys, shape.hidden)
    yield _linear(f"{name}.v_proj", keys, shape.hidden)
    yield _linear(f"{name}.o_proj", shape.hidden, queries)
    if kind != "llama":
        yield _norm(f"{name}.q_norm", shape.head_size)
        yield _norm(f"{name}.k_norm", shape.head_size)


def _latent_attention(name: str, _: Kind, shape: Shape) -> Iterator[Weight]:
    """MLA: keys and values of all heads unfold from one latent vector a token (kv_b_proj)."""
    heads, size = shape.heads, shape.head_size
    yield _linear(f"{name}.q_proj", heads * (size + shape.rotated), shape.hidden)
    yield _linear(f"{name}.kv_a_proj_with_mqa", shape.latent + shape.rotated, shape.hidden)
    yield _norm(f"{name}.kv_a_layernorm", shape.latent)
    yield _linear(f"{name}.kv_b_proj", heads * 2 * size, shape.latent)
    yield _linear(f"{name}.o_proj", shape.hidden, heads * size)


def _mlp(name: str, hidden: int, width: int) -> Iterator[Weight]:
    yield _linear(f"{name}.gate_proj", width, hidden)
    yield _linear(f"{name}.up_proj", width, hidden)
    yield _linear(f"{name}.down_proj", hidden, width)


def _write_shards(folder: Path, plan: list[Weight], seed: int, device: str) -> None:
    """Draw and save the tensors of `plan`, one shard in memory at a time."""
    shards: list[list[Weight]] = [[]]
    filled = 0
    for weight in plan:
        if shards[-1] and filled + weight.size_bytes > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(weight)
        filled += weight.size_bytes
    generator = torch.Generator(device=device).manual_seed(seed)
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {weight.name: _draw(weight, generator, device) for weight in shard}
        save_file(tensors, str(folder / name), metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        total = sum(weight.size_bytes for weight in plan)
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (folder / "model.safetensors.index.json").write_text(text + "\n", "utf-8")


def _draw(weight: Weight, generator: Any, device: str) -> Any:
    values = torch.empty(weight.sizes, dtype=torch.float32, device=device)
    values.normal_(weight.mean, weight.deviation, generator=generator)
    return values.to(torch.bfloat16)


def main() -> None:
    """Write one model, as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m infera_shims.engines.weights", description=write_model.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--layers", type=int, help="fewer (or more) layers than the shape has")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers is not None:
        shape = dataclasses.replace(shape, layers=options.layers)
    print(write_model(options.kind, options.folder, shape, options.seed, options.device))


if __name__ == "__main__":
    main()
