"""Tiny GGUF files, made by our writer from plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windlass.models.gguf.ggml_types import TYPES
from windlass.models.gguf.writer import WrittenTensor, write_gguf

Arrays = Mapping[str, np.ndarray]

TOKENS = ["<|end|>", *"abcd", "ab", "cd", "abcd", "Ġ", "Ġa", "<|im_start|>", "<|im_end|>", "x", "y", "z", "é"]


def byte_level(**extra: Any) -> dict[str, Any]:
    """The metadata of a byte-level vocabulary of sixteen tokens."""
    kinds = np.array([3 if token.startswith("<|") else 1 for token in TOKENS], np.int32)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["a b", "c d", "ab cd", "Ġ a"],
        "tokenizer.ggml.eos_token_id": 11,
        **extra,
    }


def llama_metadata(**extra: Any) -> dict[str, Any]:
    """The metadata of a llama with two layers, width 32, four query heads and two key heads."""
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.block_count": 2,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500.0,
        "llama.rope.dimension_count": 8,
        "llama.vocab_size": len(TOKENS),
        **byte_level(),
        **extra,
    }


def llama_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = {
        "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
        "attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32),
        "ffn_down": (32, 64),
    }  # fmt: skip
    names = {"token_embd.weight": (len(TOKENS), 32), "output_norm.weight": (32,)}
    names |= {f"blk.{layer}.{name}.weight": size for layer in range(2) for name, size in sizes.items()}
    return {name: rng.normal(0, 0.1, size).astype(np.float32) for name, size in names.items()}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of float32 arrays, or of ready bytes with their type."""

    def written(metadata: Mapping[str, Any], arrays: Mapping[str, Any], name: str = "tiny.gguf") -> Path:
        tensors = []
        for key, value in arrays.items():
            kind, shape, data = (
                value if isinstance(value, tuple) else ("F32", value.shape, value.astype("<f4").tobytes())
            )
            tensors.append(WrittenTensor(key, tuple(shape), TYPES[kind], lambda data=data: iter([data])))
        path = tmp_path / name
        with path.open("wb") as file:
            write_gguf(file, metadata, tensors)
        return path

    return written


@pytest.fixture
def tiny_llama(write: Callable[..., Path]) -> Path:
    return write(llama_metadata(), llama_arrays())


@pytest.fixture
def llama() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of a tiny llama."""
    return llama_metadata(), llama_arrays()
