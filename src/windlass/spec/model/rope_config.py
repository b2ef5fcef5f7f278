"""Rotary positions of a config.json: theta, stretching, and the part of a head that is rotated.

Files of transformers 5 have one table `rope_parameters` (Gemma 3: one for each kind of layer); older ones
have `rope_theta`, `rope_scaling` and `partial_rotary_factor` next to each other. Both are read and written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windlass.spec.errors import BadInput
from windlass.spec.model.decoder import FEATURES, DecoderShape, RopeScaling

Config = Mapping[str, Any]
_KINDS = ("default", "llama3", "linear", "dynamic", "yarn", "longrope", "su")
_NAMES = {
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "truncate": "truncate",
    "attention_factor": "attention_factor",
}
"""Theirs to ours, for the fields that are read as they are."""
_USED = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor"),
    "longrope": ("factor", "attention_factor"),
}
_LOCAL_THETA = 10000.0
_PARTIAL = ("phi", "phi3", "stablelm", "gpt_neox")
"""Families that may rotate a part of each head."""


def read_rope(config: Config, where: str, family: str, theta: float) -> dict[str, Any]:
    """Return the fields of a shape that describe rotary positions; `theta` is the family's default."""
    field, table = _table(config, where)
    local = _LOCAL_THETA if family == "gemma3" else None
    if "full_attention" in table or "sliding_attention" in table:
        local_table = table.get("sliding_attention") or {}
        local = _number(local_table, "rope_theta", local or theta, where)
        _check_kind(
            local_table.get("rope_type", "default"), ("default",), f"{field}.sliding_attention", where
        )
        table = table.get("full_attention") or {}
    elif family == "gemma3":
        local = _number(config, "rope_local_base_freq", _LOCAL_THETA, where)
    theta = _number(table, "rope_theta", _number(config, _theta_name(config), theta, where), where)
    share = _share(config, table, family, where)
    kind = table.get("rope_type", table.get("type", "default"))
    _check_kind(kind, _KINDS, field, where)
    scaling = None
    if kind != "default":
        scaling = _scaling("longrope" if kind == "su" else kind, table, config, field, where)
    return {"rope_theta": theta, "rope_scaling": scaling, "rotary_share": share, "window_theta": local}


def rope_fields(shape: DecoderShape) -> dict[str, Any]:
    """Write what `read_rope` reads, of both the old and the present naming."""
    scaling = _scaling_fields(shape)
    whole: dict[str, Any] = {"rope_theta": shape.rope_theta, **(scaling or {"rope_type": "default"})}
    if shape.rotary_share != 1.0:
        whole["partial_rotary_factor"] = shape.rotary_share
    written: dict[str, Any] = {
        "rope_parameters": whole,
        "rope_theta": shape.rope_theta,
        "rope_scaling": scaling,
    }
    if shape.rotary_share != 1.0:
        written["partial_rotary_factor"] = shape.rotary_share
    if shape.rope_scaling is not None and shape.family == "phi3":
        written["original_max_position_embeddings"] = shape.rope_scaling.original_context
    if shape.window_theta is not None:
        local = {"rope_theta": shape.window_theta, "rope_type": "default"}
        written["rope_parameters"] = {"full_attention": whole, "sliding_attention": local}
        written["rope_local_base_freq"] = shape.window_theta
    return written


def _table(config: Config, where: str) -> tuple[str, Config]:
    field = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    table = config.get(field) or {}
    if not isinstance(table, Mapping):
        raise BadInput(f"{where}: '{field}' is {table!r}, not a table")
    return field, table


def _theta_name(config: Config) -> str:
    return "rotary_emb_base" if "rotary_emb_base" in config else "rope_theta"


def _share(config: Config, table: Config, family: str, where: str) -> float:
    share = table.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct")))
    share = FEATURES[family].get("rotary_share", 1.0) if share is None else share
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise BadInput(f"{where}: partial_rotary_factor is {share!r}, not a number above 0 and up to 1")
    if share != 1 and family not in _PARTIAL:
        raise BadInput(
            f"{where}: partial_rotary_factor = {share!r} is not supported for model_type '{family}'",
            hint="supported: 1.0",
        )
    return float(share)


def _scaling(kind: str, table: Config, config: Config, field: str, where: str) -> RopeScaling:
    found: dict[str, Any] = {"kind": kind}
    found |= {ours: table[theirs] for theirs, ours in _NAMES.items() if table.get(theirs) is not None}
    original = config.get("original_max_position_embeddings") or table.get("original_max_position_embeddings")
    context = config.get("max_position_embeddings")
    required = {"llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
    for name in required.get(kind, ()):
        if name not in table:
            raise BadInput(f"{where}: '{field}' of type {kind} lacks '{name}'")
    if kind == "llama3" and not original:
        raise BadInput(f"{where}: '{field}' of type llama3 lacks 'original_max_position_embeddings'")
    found["original_context"] = original or context
    found["factor"] = table.get("factor") or context / found["original_context"]
    if kind == "yarn" and "attention_factor" not in found:
        found["attention_factor"] = _mscale_ratio(found["factor"], table)
    if kind == "longrope":
        for theirs, ours in (("short_factor", "short_factors"), ("long_factor", "long_factors")):
            if not isinstance(table.get(theirs), list):
                raise BadInput(f"{where}: '{field}' of type longrope lacks the list '{theirs}'")
            found[ours] = tuple(float(value) for value in table[theirs])
    return RopeScaling.model_validate({name: value for name, value in found.items() if value is not None})


def _mscale_ratio(factor: float, table: Config) -> float | None:
    """DeepSeek's form of YaRN gives the attention factor as a ratio of two scales."""
    one, all_of = table.get("mscale"), table.get("mscale_all_dim")
    if not (one and all_of):
        return None
    log = math.log(factor) if factor > 1 else 0.0
    return float((0.1 * one * log + 1.0) / (0.1 * all_of * log + 1.0))


def _scaling_fields(shape: DecoderShape) -> dict[str, Any] | None:
    scaling = shape.rope_scaling
    if scaling is None:
        return None
    written: dict[str, Any] = {"rope_type": scaling.kind}
    for name in _USED[scaling.kind]:
        if getattr(scaling, name) is not None:
            written[name] = getattr(scaling, name)
    if scaling.kind in ("llama3", "yarn", "longrope", "dynamic"):
        written["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "longrope":
        written |= {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
    return written


def _number(table: Config, name: str, default: float, where: str) -> float:
    value = table.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or value <= 0:
        raise BadInput(f"{where}: '{name}' is {value!r}, not a number above 0")
    return float(value)


def _check_kind(kind: Any, known: tuple[str, ...], field: str, where: str) -> None:
    if kind not in known:
        raise BadInput(
            f"{where}: {field}.rope_type = {kind!r} is not supported", hint=f"supported: {', '.join(known)}"
        )
