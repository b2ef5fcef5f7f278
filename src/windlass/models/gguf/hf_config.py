"""Metadata of a GGUF file to the config.json of its family.

Input: a GgufFile. Output: the Architecture, and the fields that Hugging Face's model of the same computation
has. What a file says and the family's config.json has no field for is refused, never passed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windlass.models.gguf.architectures import ARCHITECTURES, FALCON_40B, MIXTURE, Architecture
from windlass.models.gguf.dequantise import dequantise
from windlass.models.gguf.reader import GgufFile
from windlass.spec.errors import BadInput, Damaged, did_you_mean

HARMLESS_KEYS = (
    "vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length",
    "attention.causal", "feed_forward_length", "tensor_data_layout", "rope.scaling.finetuned",
    "expert_feed_forward_length", "rope.freq_base", "rope.freq_base_swa", "context_length",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "rope.scale_linear", "use_parallel_residual", "interleave_moe_layer_step",
)  # fmt: skip
"""Metadata of an architecture that is read elsewhere here, or that changes nothing."""
LLAMA3_SHAPES = tuple((1.0, 4.0, original) for original in (8192, 4096, 2048, 16384, 32768))
"""Low and high frequency factor and original context of the published llama3 scalings."""
MAX_LAYERS = 4096


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file; one that has no family here is refused by name."""
    name = file.get("general.architecture", str)
    found = ARCHITECTURES.get(name)
    if found is None:
        raise BadInput(
            f"{file.path}: architecture '{name[:40]}' is not supported",
            hint=did_you_mean(name[:40], sorted(ARCHITECTURES)),
        )
    if found.name == "llama" and file.get("llama.expert_count", int, 0) > 0:
        return MIXTURE
    if found.name == "falcon" and "blk.0.attn_norm_2.weight" in file.tensors:
        return FALCON_40B
    return found


def config_of(file: GgufFile, architecture: Architecture, dtype: str) -> dict[str, Any]:
    """Return the fields of config.json."""
    _refuse_unknown(file, architecture)
    read = _Reader(file, architecture)
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": dtype,
        "torch_dtype": dtype,
        **architecture.fixed,
        "vocab_size": _embedding(file)[0],
        "tie_word_embeddings": architecture.always_tied or "output.weight" not in file.tensors,
    }
    for name, key in architecture.fields.items():
        config[name] = read.number(key)
    for name, key in architecture.optional.items():
        if read.has(key):
            config[name] = read.number(key)
    config |= _attention(read, config)
    config |= _rotary(read, config)
    return config | _particular(read, config)


class _Reader:
    """The metadata of a file's architecture, without its prefix."""

    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self.file, self.architecture = file, architecture

    def key(self, key: str) -> str:
        return f"{self.architecture.name}.{key}"

    def has(self, key: str) -> bool:
        return self.key(key) in self.file.metadata

    def number(self, key: str) -> Any:
        """Return a number or a flag; float32 is read as the shortest decimal that it stands for."""
        value = self.file.metadata.get(self.key(key), _DEFAULTS.get(key))
        if value is None and key == "attention.head_count_kv":
            return self.number("attention.head_count")
        if isinstance(value, np.ndarray):
            value = self._same(key, value)
        if isinstance(value, float):
            return float(str(np.float32(value)))
        if isinstance(value, bool | int):
            return value
        raise BadInput(f"{self.file.path}: metadata '{self.key(key)}' is missing or not a number")

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors

    def _same(self, key: str, values: Any) -> Any:
        """Some files list a size for each layer; our families have one size for all."""
        if len(values) == 0 or (values != values[0]).any():
            raise BadInput(f"{self.file.path}: '{self.key(key)}' differs from layer to layer, not supported")
        return values[0].item()


_DEFAULTS: dict[str, Any] = {"use_parallel_residual": True}


def _refuse_unknown(file: GgufFile, architecture: Architecture) -> None:
    """Every value that an architecture states must be read; the rest may change what is computed."""
    known = {*architecture.fields.values(), *architecture.optional.values(), *HARMLESS_KEYS}
    prefix = f"{architecture.name}."
    known |= {"attention.sliding_window"} if architecture.window_every else set()
    for key, value in file.metadata.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and name not in known and not _is_nothing(value):
            raise BadInput(f"{file.path}: metadata '{key[:80]}' is not supported for this architecture")


def _is_nothing(value: Any) -> bool:
    return isinstance(value, bool | int | float) and not value


def _embedding(file: GgufFile) -> tuple[int, ...]:
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise Damaged(f"{file.path}: holds no matrix 'token_embd.weight'", hint="is it a whole model?")
    return info.shape


def _attention(read: _Reader, config: dict[str, Any]) -> dict[str, Any]:
    """Head width and biases, which GGUF states by sizes and by tensors."""
    found: dict[str, Any] = {}
    architecture = read.architecture
    if architecture.head_width and (read.has("attention.key_length") or read.has("rope.dimension_count")):
        key = "attention.key_length" if read.has("attention.key_length") else "rope.dimension_count"
        found["head_dim"] = read.number(key)
    widths = [key for key in ("attention.key_length", "attention.value_length") if read.has(key)]
    if len({read.number(key) for key in widths}) > 1:
        raise BadInput(f"{read.file.path}: keys and values of different widths are not supported")
    biased = read.has_tensor("blk.0.attn_q.bias")
    if architecture.model_type in ("llama", "granite"):
        found |= {"attention_bias": biased, "mlp_bias": read.has_tensor("blk.0.ffn_up.bias")}
    if architecture.name == "stablelm":
        found |= {"use_qkv_bias": biased, "qk_layernorm": read.has_tensor("blk.0.attn_q_norm.weight")}
    return found


def _rotary(read: _Reader, config: dict[str, Any]) -> dict[str, Any]:
    architecture = read.architecture
    if not architecture.rotary:
        return {}
    theta = read.number("rope.freq_base") if read.has("rope.freq_base") else 10000.0
    found: dict[str, Any] = {architecture.rotary: float(theta), "rope_scaling": _scaling(read, config, theta)}
    if architecture.partial and read.has("rope.dimension_count"):
        head = config["hidden_size"] // config["num_attention_heads"]
        found[architecture.partial] = read.number("rope.dimension_count") / head
    return found


def _scaling(read: _Reader, config: dict[str, Any], theta: float) -> dict[str, Any] | None:
    """Rotary scaling: llama3's is a tensor of factors, Phi's are two, the others are metadata."""
    if read.has_tensor("rope_freqs.weight"):
        return _llama3(read.file, theta, config["max_position_embeddings"])
    if read.has_tensor("rope_factors_long.weight"):
        long, short = (_vector(read.file, f"rope_factors_{length}.weight") for length in ("long", "short"))
        return {"type": "longrope", "rope_type": "longrope", "long_factor": long, "short_factor": short}
    kind = read.file.metadata.get(read.key("rope.scaling.type"), "none")
    if kind not in ("none", "linear", "yarn"):
        raise BadInput(f"{read.file.path}: rotary scaling {kind!r} is not supported")
    if kind == "none" and not read.has("rope.scale_linear"):
        return None
    factor = read.number("rope.scale_linear" if read.has("rope.scale_linear") else "rope.scaling.factor")
    if kind in ("linear", "none"):
        return (
            None if factor in (0, 1) else {"type": "linear", "rope_type": "linear", "factor": float(factor)}
        )
    return {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": float(factor),
        "original_max_position_embeddings": read.number("rope.scaling.original_context_length"),
    }


def _vector(file: GgufFile, name: str) -> list[float]:
    info = file.tensors[name]
    return [float(str(value)) for value in dequantise(file.rows(info), info.kind).ravel()]


def _llama3(file: GgufFile, theta: float, context: int) -> dict[str, Any]:
    """Recognise the parameters of a llama3 scaling by the factors that they give."""
    factors = np.array(_vector(file, "rope_freqs.weight"))
    largest = float(np.round(factors.max(), 4))
    for low, high, original in LLAMA3_SHAPES:
        if np.allclose(factors, llama3_factors(theta, 2 * len(factors), largest, low, high, original), 1e-4):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise BadInput(f"{file.path}: 'rope_freqs.weight' is not one of the known llama3 scalings")


def llama3_factors(
    theta: float, width: int, factor: float, low: float, high: float, original: int
) -> np.ndarray[Any, Any]:
    """Return what each rotary frequency is divided by: 1 for the fast ones, `factor` for the slow ones."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    smooth = (original / wavelength - low) / (high - low)
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wavelength < original / high, 1.0, np.where(wavelength > original / low, factor, middle))


def _particular(read: _Reader, config: dict[str, Any]) -> dict[str, Any]:
    """What single architectures state in ways of their own."""
    name, layers = read.architecture.name, config.get("num_hidden_layers", 0)
    if layers > MAX_LAYERS:
        raise BadInput(f"{read.file.path}: {layers} layers are more than {MAX_LAYERS}")
    if name in ("gemma2", "gemma3"):
        return _gemma(read, config, layers)
    if name == "phi3" and not config.get("sliding_window"):
        return {"sliding_window": None}
    if name == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(layers)]}
    if name == "falcon" and not config.get("new_decoder_architecture"):
        return {"new_decoder_architecture": False, "multi_query": config["num_kv_heads"] == 1}
    if name == "qwen3moe":
        return {"intermediate_size": config["intermediate_size"] or config["moe_intermediate_size"]}
    return {}


def _gemma(read: _Reader, config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The largest models scale queries by the width divided among heads, the others by the head's width."""
    every = read.architecture.window_every
    largest = layers == {"gemma2": 46, "gemma3": 62}[read.architecture.name]
    shared = config["hidden_size"] // config["num_attention_heads"]
    kinds = ["full_attention" if (n + 1) % every == 0 else "sliding_attention" for n in range(layers)]
    found = {"query_pre_attn_scalar": shared if largest else config["head_dim"], "layer_types": kinds}
    return found | ({"sliding_window_pattern": every} if read.architecture.name == "gemma3" else {})
