"""The models of the serving benchmarks, made once from a fixed seed.

    name -> directory of config.json and model.safetensors, the same bytes on every machine

Speed does not depend on the values of weights, so nothing is downloaded or trained. They are drawn so that
each layer adds as much to a token's state as the embedding: greedy answers then wander through the
vocabulary, as those of a trained model do, and no engine can win by predicting a repetition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from windlass.spec.config import config_from_shape
from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.shape import DecoderShape, HmmShape

CONTEXT = 2048
SUBJECTS = {
    "tiny": DecoderShape(
        vocabulary=512, context=512, layers=2, width=64, heads=4, kv_heads=4, ffn_width=160, tied=True
    ),
    "small": DecoderShape(
        vocabulary=32000, context=CONTEXT, layers=6, width=288, heads=6, kv_heads=6, ffn_width=768, tied=True
    ),
    "base": DecoderShape(
        vocabulary=32000,
        context=CONTEXT,
        layers=12,
        width=768,
        heads=12,
        kv_heads=12,
        ffn_width=2048,
        tied=True,
    ),
}
"""small and base have about 15 and 110 million weights and the vocabulary of Llama 2; tiny is for trying."""
SEED = 6


def subject(name: str) -> DecoderShape:
    if name not in SUBJECTS:
        raise BadInput(f"no benchmark model '{name}'", hint=did_you_mean(name, list(SUBJECTS)))
    return SUBJECTS[name]


def write_subject(
    shape: DecoderShape, folder: Path, *, special_tokens: Mapping[str, int | list[int] | None] | None = None
) -> Path:
    """Write the model unless it exists; config.json is written last, so incomplete models do not count."""
    config = folder / "config.json"
    if not config.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_weights(shape), folder / "model.safetensors", metadata={"format": "pt"})
        fields = config_from_shape(shape, dtype="float32", special_tokens=special_tokens)
        config.write_text(json.dumps(fields, indent=2))
    return folder


def write_hidden(shape: HmmShape, folder: Path) -> Path:
    """Write a hidden Markov model with random tables; few tokens are likely in each of its states."""
    rng = np.random.default_rng(SEED)

    def drawn(*size: int) -> np.ndarray:
        likely = rng.standard_exponential(size) ** 8 + 1e-6
        chances: np.ndarray = likely / likely.sum(-1, keepdims=True)
        return chances.astype(np.float32)

    states = shape.states
    tables = {"start": drawn(states), "transition": drawn(states, states)}
    tables["emission"] = drawn(states, shape.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tables, folder / "model.safetensors", metadata={"format": "windlass-hmm"})
    (folder / "config.json").write_text(json.dumps(config_from_shape(shape), indent=2))
    return folder


def _weights(shape: DecoderShape) -> dict[str, np.ndarray]:
    """Draw the tensors, with the names of Hugging Face."""
    rng = np.random.default_rng(SEED)

    def drawn(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)

    width, kv_width = shape.width, shape.kv_heads * shape.head_width
    ones = np.ones(width, dtype=np.float32)
    tensors = {"model.embed_tokens.weight": drawn(shape.vocabulary, width), "model.norm.weight": ones}
    if not shape.tied:
        tensors["lm_head.weight"] = drawn(shape.vocabulary, width)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        tensors |= {
            f"{layer}.input_layernorm.weight": ones,
            f"{layer}.post_attention_layernorm.weight": ones,
            f"{layer}.self_attn.q_proj.weight": drawn(shape.attention_width, width),
            f"{layer}.self_attn.k_proj.weight": drawn(kv_width, width),
            f"{layer}.self_attn.v_proj.weight": drawn(kv_width, width),
            f"{layer}.self_attn.o_proj.weight": drawn(width, shape.attention_width),
            f"{layer}.mlp.gate_proj.weight": drawn(shape.ffn_width, width),
            f"{layer}.mlp.up_proj.weight": drawn(shape.ffn_width, width),
            f"{layer}.mlp.down_proj.weight": drawn(width, shape.ffn_width),
        }
    return tensors
