"""Fields of config.json to the metadata of a GGUF file: the way back of `hf_config`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.gguf.architectures import Architecture
from windlass.models.gguf.hf_config import llama3_factors
from windlass.spec.errors import BadInput

QUANTISATION_VERSION = 2
PLAIN = (None, "default", "none")


def metadata_of(
    config: Mapping[str, Any], architecture: Architecture, file_type: int, source: Path
) -> dict[str, Any]:
    """Return the metadata without the vocabulary's."""
    where = f"{source}/config.json"
    found: dict[str, Any] = {
        "general.architecture": architecture.name,
        "general.type": "model",
        "general.name": source.parent.name if source.name.isdigit() else source.name,
        "general.file_type": file_type,
        "general.quantization_version": QUANTISATION_VERSION,
    }
    prefix = f"{architecture.name}."
    sizes = {**architecture.fields, **architecture.optional}
    for field, key in sizes.items():
        value = config.get(field)
        if value is None and field == "num_key_value_heads":
            value = config["num_attention_heads"]
        if value is None and field == "n_inner":
            value = 4 * config["n_embd"]
        if value is None and field in architecture.optional:
            continue
        if value is None:
            raise BadInput(f"{where}: '{field}' is missing")
        found[prefix + key] = value
    found |= {prefix + key: value for key, value in _attention(config, architecture, where).items()}
    return found | _defaults(config, prefix, architecture)


def _attention(config: Mapping[str, Any], architecture: Architecture, where: str) -> dict[str, Any]:
    """Head widths, rotary positions and their scaling."""
    found: dict[str, Any] = {}
    width = config.get("hidden_size") or config["n_embd"]
    head = config.get("head_dim") or width // (config.get("num_attention_heads") or config["n_head"])
    if architecture.head_width:
        found |= {"attention.key_length": head, "attention.value_length": head}
    if not architecture.rotary:
        return found
    rope = _rope(config)
    part = _partial(config, rope, architecture)
    found["rope.dimension_count"] = int(head * part)
    theta = rope.get("rope_theta") or config.get(architecture.rotary) or 10000.0
    found["rope.freq_base"] = float(theta)
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = int(rope["original_max_position_embeddings"])
    if kind not in (*PLAIN, "linear", "yarn", "llama3", "longrope"):
        raise BadInput(f"{where}: rotary scaling '{kind}' cannot be written as GGUF")
    return found


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of rotary positions, of the present naming or of the former."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return dict(nested.get("full_attention", nested))


def _partial(config: Mapping[str, Any], rope: Mapping[str, Any], architecture: Architecture) -> float:
    if not architecture.partial:
        return 1.0
    part = config.get(architecture.partial) or rope.get("partial_rotary_factor")
    return float(part if part is not None else 1.0)


def _defaults(config: Mapping[str, Any], prefix: str, architecture: Architecture) -> dict[str, Any]:
    """Values that llama.cpp requires and config.json leaves out."""
    found: dict[str, Any] = {f"{prefix}vocab_size": config["vocab_size"]}
    if architecture.name == "falcon":
        found |= {
            f"{prefix}feed_forward_length": 4 * config["hidden_size"],
            f"{prefix}tensor_data_layout": "jploski",
        }
    if architecture.name == "phi3" and not config.get("sliding_window"):
        found[f"{prefix}attention.sliding_window"] = 0
    if architecture.optional.get("use_parallel_residual"):
        found.setdefault(f"{prefix}use_parallel_residual", bool(config.get("use_parallel_residual", True)))
    return found


def rotary_factors(config: Mapping[str, Any], architecture: Architecture) -> dict[str, NDArray[np.float64]]:
    """Return the tensors that GGUF has where config.json has a table of scaling."""
    if not architecture.rotary:
        return {}
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "longrope":
        return {
            f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"])
            for length in ("long", "short")
        }
    if kind != "llama3":
        return {}
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = float(rope.get("rope_theta") or config["rope_theta"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    original = int(rope["original_max_position_embeddings"])
    return {"rope_freqs.weight": llama3_factors(theta, head, float(rope["factor"]), low, high, original)}
