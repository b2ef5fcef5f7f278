"""The config.json of every decoder family, to and from a DecoderShape.

`CONFIGS` is the table: for each family its names in Hugging Face, which of their fields is which of ours,
and which values of other fields are computed. A value that would change the result and is not in the table
is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.spec.errors import BadInput
from windlass.spec.model.decoder import FEATURES, DecoderShape
from windlass.spec.model.rope_config import read_rope, rope_fields

Config = Mapping[str, Any]
_REQUIRED = object()


@dataclass(frozen=True)
class ConfigField:
    """One field of theirs, and the fields of ours that it sets."""

    ours: tuple[str, ...]
    theirs: str
    default: Any = _REQUIRED
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    also: str = ""
    """Another name, which other versions of transformers write; both are written."""


@dataclass(frozen=True)
class FamilyConfig:
    """How one family writes its config.json."""

    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    """The first is the one that is written."""
    fields: tuple[ConfigField, ...]
    computed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Other fields that change the result, and the values that are computed; the first is written."""
    read: Callable[[Config, dict[str, Any], str], None] | None = None
    """Sets what is no plain field."""
    write: Callable[[DecoderShape], dict[str, Any]] | None = None
    rope_theta: float = 10000.0
    """Where the file gives none."""
    head_dim: bool = True
    """Whether heads may be wider or narrower than width / heads."""


def decoder_from_config(family: str, config: Config, where: str) -> DecoderShape:
    """Read a shape; `where` names the file in errors."""
    known = CONFIGS[family]
    for name, allowed in known.computed.items():
        if name in config and config[name] not in allowed:
            raise unsupported(where, name, config[name], [a for a in allowed if a is not None] or [None])
    found: dict[str, Any] = {"family": family}
    for row in known.fields:
        value = config.get(row.theirs, config.get(row.also or row.theirs))
        if value is None and row.default is _REQUIRED:
            raise BadInput(f"{where}: '{row.theirs}' is missing")
        value = row.default if value is None else value
        _check_type(row, value, where)
        if value is not None:
            found |= dict.fromkeys(row.ours, value if row.read is None else row.read(value))
    if known.head_dim:
        _read_head_width(config, found, where)
    if known.read is not None:
        known.read(config, found, where)
    if FEATURES[family].get("positions") != "learned":
        found |= read_rope(config, where, family, known.rope_theta)
    return DecoderShape(**found)


def decoder_fields(shape: DecoderShape) -> dict[str, Any]:
    """Write the fields that `decoder_from_config` reads; refuse a shape that the family cannot describe."""
    known = CONFIGS[shape.family]
    written: dict[str, Any] = {}
    for row in known.fields:
        value = getattr(shape, row.ours[0])
        written[row.theirs] = value if row.write is None or value is None else row.write(value)
        if row.also:
            written[row.also] = written[row.theirs]
    written |= {name: allowed[0] for name, allowed in known.computed.items()}
    if shape.positions == "rotary":
        written |= rope_fields(shape) | ({"head_dim": shape.head_width} if known.head_dim else {})
    if known.write is not None:
        written |= known.write(shape)
    again = decoder_from_config(shape.family, written, "config.json")
    if again != shape:
        differing = [n for n in DecoderShape.model_fields if getattr(again, n) != getattr(shape, n)]
        raise BadInput(
            f"a config.json of family {shape.family} cannot say {differing[0]} ="
            f" {getattr(shape, differing[0])!r}",
            hint="choose a family that has this feature: docs/reference/models.md lists them",
        )
    return written


def unsupported(where: str, name: str, value: Any, supported: list[Any]) -> BadInput:
    listed = ", ".join("null" if s is None else str(s) for s in supported)
    return BadInput(f"{where}: {name} = {value!r} is not supported", hint=f"supported: {listed}")


def _check_type(row: ConfigField, value: Any, where: str) -> None:
    if value is None or row.ours[0] not in DecoderShape.model_fields:
        return
    if row.ours[0] in _WHOLE and (type(value) is not int or value < (row.ours[0] not in _MAY_BE_ZERO)):
        lowest = 0 if row.ours[0] in _MAY_BE_ZERO else 1
        raise BadInput(f"{where}: '{row.theirs}' is {value!r}, not a whole number of at least {lowest}")
    if row.ours[0] in _NUMBERS and (type(value) not in (int, float) or not math.isfinite(value)):
        raise BadInput(f"{where}: '{row.theirs}' is {value!r}, not a number")
    if row.ours[0] in _FLAGS and not isinstance(value, bool):
        raise BadInput(f"{where}: '{row.theirs}' is {value!r}, not true or false")


_MAY_BE_ZERO = ("experts", "experts_per_token", "expert_width", "shared_width")
_WHOLE = (
    "vocabulary", "context", "layers", "width", "heads", "kv_heads", "ffn_width", "window", *_MAY_BE_ZERO,
)  # fmt: skip
_NUMBERS = (
    "norm_epsilon", "attention_scale", "attention_softcap", "logit_softcap", "embedding_scale",
    "residual_scale", "logit_scale", "balance_loss",
)  # fmt: skip
_FLAGS = (
    "tied", "qkv_bias", "output_bias", "ffn_bias", "norm_bias", "normalised_experts",
)  # fmt: skip


def _read_head_width(config: Config, found: dict[str, Any], where: str) -> None:
    """0 means "not given"; a value equal to the one derived from the width adds nothing."""
    given = config.get("head_dim")
    if given is None:
        return
    if type(given) is not int or given < 1:
        raise BadInput(f"{where}: 'head_dim' is {given!r}, not a whole number of at least 1")
    if given * found["heads"] != found["width"]:
        found["explicit_head_width"] = given


def _plain(ours: str, theirs: str, default: Any = _REQUIRED) -> ConfigField:
    return ConfigField((ours,), theirs, default)


def _inverse(value: float) -> float:
    return 1.0 / value


def _from_scalar(value: float) -> float:
    return 1.0 / math.sqrt(value)


def _to_scalar(value: float) -> float:
    scalar = round(value**-2, 6)
    return int(scalar) if scalar.is_integer() else scalar


_SIZES = (
    _plain("vocabulary", "vocab_size"),
    _plain("context", "max_position_embeddings"),
    _plain("layers", "num_hidden_layers"),
    _plain("width", "hidden_size"),
    _plain("heads", "num_attention_heads"),
    _plain("kv_heads", "num_key_value_heads", None),
    _plain("ffn_width", "intermediate_size"),
)
_LLAMA = (*_SIZES, _plain("norm_epsilon", "rms_norm_eps", 1e-6), _plain("tied", "tie_word_embeddings", False))
_GEMMA = (*_LLAMA[:-1], _plain("tied", "tie_word_embeddings", True))
_BIAS = ConfigField(("qkv_bias", "output_bias"), "attention_bias", False)
_BIAS_TRUE = ConfigField(("qkv_bias", "output_bias"), "attention_bias", True)
_NUM_EXPERTS = ConfigField(("experts",), "num_experts", also="num_local_experts")
_EXPERTS = (
    _plain("experts_per_token", "num_experts_per_tok"),
    _plain("balance_loss", "router_aux_loss_coef", 0.0),
)
_SILU: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish")}
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new")
_SOFTCAPS = (
    _plain("attention_softcap", "attn_logit_softcapping", None),
    _plain("logit_softcap", "final_logit_softcapping", None),
)
_SCALAR = ConfigField(("attention_scale",), "query_pre_attn_scalar", 256, _from_scalar, _to_scalar)


def _window_everywhere(config: Config, found: dict[str, Any], where: str) -> None:
    """One window in all layers, unless `layer_types` says which."""
    found["window"] = _window(config, where)
    if found["window"] is not None and config.get("layer_types") is not None:
        _window_by_layer(config, found, where, lambda layer: True)


def _window_if_used(config: Config, found: dict[str, Any], where: str) -> None:
    """Qwen: the layers from `max_window_layers` on, if the window is used at all."""
    found["window"] = _window(config, where) if config.get("use_sliding_window") else None
    first = config.get("max_window_layers", found["layers"])
    if found["window"] is not None:
        _window_by_layer(config, found, where, lambda layer: layer >= first)


def _window_alternating(config: Config, found: dict[str, Any], where: str) -> None:
    """Gemma 2 and gpt-oss: every other layer, from the first."""
    found["window"] = _window(config, where)
    if found["window"] is not None:
        _window_by_layer(config, found, where, lambda layer: layer % 2 == 0)


def _gemma3(config: Config, found: dict[str, Any], where: str) -> None:
    """Five layers with a window, then one without."""
    found["window"] = _window(config, where)
    pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    if found["window"] is not None:
        _window_by_layer(config, found, where, lambda layer: (layer + 1) % pattern != 0)


def _smollm3(config: Config, found: dict[str, Any], where: str) -> None:
    """Layers without positions: every fourth, or those with 0 in `no_rope_layers`."""
    layers, every = found["layers"], config.get("no_rope_layer_interval", 4)
    rotated = config.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers:
        raise BadInput(f"{where}: 'no_rope_layers' must list {layers} layers")
    found["unrotated_layers"] = tuple(layer for layer in range(layers) if not rotated[layer])
    found["window"] = _window(config, where) if config.get("use_sliding_window") else None
    if found["window"] is not None:
        _window_by_layer(config, found, where, lambda layer: not rotated[layer])


def _window(config: Config, where: str) -> int | None:
    window = config.get("sliding_window")
    if window is not None and (type(window) is not int or window < 1):
        raise BadInput(f"{where}: 'sliding_window' is {window!r}, not a whole number of at least 1")
    return window


def _window_by_layer(
    config: Config, found: dict[str, Any], where: str, default: Callable[[int], bool]
) -> None:
    layers = found["layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        with_window = [layer for layer in range(layers) if default(layer)]
    else:
        unknown = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
        if unknown:
            raise unsupported(where, "layer_types", unknown[0], ["full_attention", "sliding_attention"])
        if len(kinds) != layers:
            raise BadInput(f"{where}: 'layer_types' lists {len(kinds)} layers, not {layers}")
        with_window = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
    if not with_window:
        found["window"] = None
    elif len(with_window) < layers:
        found["window_layers"] = tuple(with_window)


def _layer_types(shape: DecoderShape) -> dict[str, Any]:
    kinds = [
        "full_attention" if shape.window_of(layer) is None else "sliding_attention"
        for layer in range(shape.layers)
    ]
    return {"sliding_window": shape.window, "layer_types": kinds}


def _qwen_window(shape: DecoderShape) -> dict[str, Any]:
    used = {"use_sliding_window": shape.window is not None, "max_window_layers": shape.layers}
    return _layer_types(shape) | used


def _qwen_moe_window(shape: DecoderShape) -> dict[str, Any]:
    return _qwen_window(shape) | _sparse_fields(shape)


def _qwen_moe(config: Config, found: dict[str, Any], where: str) -> None:
    _window_if_used(config, found, where)
    _sparse_layers(config, found)


def _sparse_layers(config: Config, found: dict[str, Any]) -> None:
    step, dense = config.get("decoder_sparse_step") or 1, set(config.get("mlp_only_layers") or ())
    found["dense_layers"] = tuple(
        layer for layer in range(found["layers"]) if layer in dense or (layer + 1) % step
    )


def _sparse_fields(shape: DecoderShape) -> dict[str, Any]:
    return {"decoder_sparse_step": 1, "mlp_only_layers": list(shape.dense_layers)}


def _qwen2_moe(config: Config, found: dict[str, Any], where: str) -> None:
    _qwen_moe(config, found, where)
    found["shared_gate"] = found.get("shared_width", 0) > 0


def _smollm3_fields(shape: DecoderShape) -> dict[str, Any]:
    rotated = [int(layer not in shape.unrotated_layers) for layer in range(shape.layers)]
    used = {"use_sliding_window": shape.window is not None}
    return _layer_types(shape) | used | {"no_rope_layers": rotated}


def _mixtral(config: Config, found: dict[str, Any], where: str) -> None:
    _window_everywhere(config, found, where)
    found["expert_width"] = found["ffn_width"]


def _same_width(config: Config, found: dict[str, Any], where: str) -> None:
    found["expert_width"] = found["ffn_width"]


def _gpt_oss(config: Config, found: dict[str, Any], where: str) -> None:
    _window_alternating(config, found, where)
    found["expert_width"] = found["ffn_width"]


def _stablelm(config: Config, found: dict[str, Any], where: str) -> None:
    if config.get("use_parallel_residual"):
        found |= {"residual": "parallel", "shared_norm": True}


def _stablelm_fields(shape: DecoderShape) -> dict[str, Any]:
    return {"use_parallel_residual": shape.residual == "parallel"}


def _neox(config: Config, found: dict[str, Any], where: str) -> None:
    is_parallel = config.get("use_parallel_residual", True)
    found["residual"] = "parallel" if is_parallel else "sequential"


def _neox_fields(shape: DecoderShape) -> dict[str, Any]:
    return {"use_parallel_residual": shape.residual == "parallel", "rotary_pct": shape.rotary_share}


def _falcon(config: Config, found: dict[str, Any], where: str) -> None:
    """Falcon 7B: one key head, one norm; 40B and later: groups of key heads, one norm or two."""
    is_new, is_parallel = config.get("new_decoder_architecture", False), config.get("parallel_attn", True)
    heads = found["heads"]
    if is_new:
        found["kv_heads"] = config.get("num_kv_heads") or heads
    else:
        found["kv_heads"] = 1 if config.get("multi_query", True) else heads
    found["ffn_width"] = config.get("ffn_hidden_size") or 4 * found["width"]
    found["residual"] = "parallel" if is_new or is_parallel else "sequential"
    norms = config.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
    found["shared_norm"] = found["residual"] == "parallel" and norms == 1


def _falcon_fields(shape: DecoderShape) -> dict[str, Any]:
    is_new = shape.residual == "parallel" and not (shape.shared_norm and shape.kv_heads in (1, shape.heads))
    return {
        "new_decoder_architecture": is_new,
        "multi_query": shape.kv_heads == 1 and not is_new,
        "num_kv_heads": shape.kv_heads,
        "parallel_attn": shape.residual == "parallel",
        "num_ln_in_parallel_attn": (1 if shape.shared_norm else 2) if shape.residual == "parallel" else None,
        "ffn_hidden_size": shape.ffn_width,
    }


CONFIGS: Mapping[str, FamilyConfig] = {
    "llama": FamilyConfig(
        ("llama",), ("LlamaForCausalLM", "LlamaModel"),
        (*_LLAMA, _BIAS, _plain("ffn_bias", "mlp_bias", False)),
        {**_SILU, "sliding_window": (None,)},
    ),
    "mistral": FamilyConfig(
        ("mistral",), ("MistralForCausalLM", "MistralModel"),
        _LLAMA, _SILU, _window_everywhere, _layer_types,
    ),
    "mixtral": FamilyConfig(
        ("mixtral",), ("MixtralForCausalLM", "MixtralModel"),
        (*_LLAMA, _plain("experts", "num_local_experts"), *_EXPERTS), _SILU,
        _mixtral, lambda shape: {"sliding_window": shape.window}, rope_theta=1e6,
    ),
    "qwen2": FamilyConfig(
        ("qwen2",), ("Qwen2ForCausalLM", "Qwen2Model"), _LLAMA, _SILU, _window_if_used, _qwen_window,
    ),
    "qwen2_moe": FamilyConfig(
        ("qwen2_moe",), ("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
        (
            *_LLAMA, *_EXPERTS, _NUM_EXPERTS,
            _plain("expert_width", "moe_intermediate_size"),
            _plain("shared_width", "shared_expert_intermediate_size", 0),
            _plain("normalised_experts", "norm_topk_prob", False), _plain("qkv_bias", "qkv_bias", True),
        ),
        _SILU, _qwen2_moe, _qwen_moe_window,
    ),
    "qwen3": FamilyConfig(
        ("qwen3",), ("Qwen3ForCausalLM", "Qwen3Model"), (*_LLAMA, _BIAS), _SILU,
        _window_if_used, _qwen_window,
    ),
    "qwen3_moe": FamilyConfig(
        ("qwen3_moe",), ("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
        (
            *_LLAMA, _BIAS, *_EXPERTS, _NUM_EXPERTS,
            _plain("expert_width", "moe_intermediate_size"),
            _plain("normalised_experts", "norm_topk_prob", False),
        ),
        _SILU, _qwen_moe, _qwen_moe_window,
    ),
    "gemma": FamilyConfig(
        ("gemma",), ("GemmaForCausalLM", "GemmaModel"), (*_GEMMA, _BIAS),
        {
            "hidden_activation": ("gelu_pytorch_tanh", None), "use_bidirectional_attention": (None, False),
            "hidden_act": ("gelu_pytorch_tanh", "gelu", "gelu_new"),
        },
    ),
    "gemma2": FamilyConfig(
        ("gemma2",), ("Gemma2ForCausalLM", "Gemma2Model"), (*_GEMMA, _BIAS, _SCALAR, *_SOFTCAPS),
        {"hidden_activation": _GELU_TANH, "use_bidirectional_attention": (None, False)},
        _window_alternating, _layer_types,
    ),
    "gemma3": FamilyConfig(
        ("gemma3_text",), ("Gemma3ForCausalLM", "Gemma3TextModel"), (*_GEMMA, _BIAS, _SCALAR, *_SOFTCAPS),
        {"hidden_activation": _GELU_TANH, "use_bidirectional_attention": (False, None)},
        _gemma3, _layer_types, rope_theta=1e6,
    ),
    "phi": FamilyConfig(
        ("phi",), ("PhiForCausalLM", "PhiModel"),
        (*_SIZES, _plain("norm_epsilon", "layer_norm_eps", 1e-5)),
        {
            "hidden_act": ("gelu_new", "gelu_pytorch_tanh"), "qk_layernorm": (False,),
            "tie_word_embeddings": (False,),
        },
        head_dim=False,
    ),
    "phi3": FamilyConfig(
        ("phi3",), ("Phi3ForCausalLM", "Phi3Model"), _LLAMA, _SILU, _window_everywhere,
        lambda shape: {"sliding_window": shape.window},
    ),
    "olmo2": FamilyConfig(
        ("olmo2",), ("Olmo2ForCausalLM", "Olmo2Model"), (*_LLAMA, _BIAS), _SILU,
    ),
    "olmoe": FamilyConfig(
        ("olmoe",), ("OlmoeForCausalLM", "OlmoeModel"),
        (
            *_LLAMA, _BIAS, *_EXPERTS, _NUM_EXPERTS,
            _plain("normalised_experts", "norm_topk_prob", False),
        ),
        {**_SILU, "clip_qkv": (None,)}, _same_width,
    ),
    "smollm3": FamilyConfig(
        ("smollm3",), ("SmolLM3ForCausalLM", "SmolLM3Model"),
        (*_GEMMA, _BIAS, _plain("ffn_bias", "mlp_bias", False)), _SILU, _smollm3, _smollm3_fields,
        rope_theta=2e6,
    ),
    "stablelm": FamilyConfig(
        ("stablelm",), ("StableLmForCausalLM", "StableLmModel"),
        (
            *_SIZES, _plain("norm_epsilon", "layer_norm_eps", 1e-5),
            _plain("tied", "tie_word_embeddings", False), _plain("qkv_bias", "use_qkv_bias", False),
        ),
        {**_SILU, "qk_layernorm": (False,)}, _stablelm, _stablelm_fields, head_dim=False,
    ),
    "granite": FamilyConfig(
        ("granite",), ("GraniteForCausalLM", "GraniteModel"),
        (
            *_LLAMA, _BIAS, _plain("ffn_bias", "mlp_bias", False),
            _plain("embedding_scale", "embedding_multiplier", 1.0),
            _plain("residual_scale", "residual_multiplier", 1.0),
            _plain("attention_scale", "attention_multiplier", 1.0),
            ConfigField(("logit_scale",), "logits_scaling", 1.0, _inverse, _inverse),
        ),
        _SILU,
    ),
    "starcoder2": FamilyConfig(
        ("starcoder2",), ("Starcoder2ForCausalLM", "Starcoder2Model"),
        (
            *_SIZES, _plain("norm_epsilon", "norm_epsilon", 1e-5),
            _plain("tied", "tie_word_embeddings", True),
            ConfigField(("qkv_bias", "output_bias", "ffn_bias"), "use_bias", True),
        ),
        {"hidden_act": _GELU_TANH}, _window_everywhere, lambda shape: {"sliding_window": shape.window},
        head_dim=False,
    ),
    "gpt2": FamilyConfig(
        ("gpt2",), ("GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"),
        (
            _plain("vocabulary", "vocab_size"), _plain("context", "n_positions"), _plain("layers", "n_layer"),
            _plain("width", "n_embd"), _plain("heads", "n_head"),
            _plain("norm_epsilon", "layer_norm_epsilon", 1e-5),
        ),
        {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False, None),
            "tie_word_embeddings": (True,),
        },
        lambda config, found, where: found.update(ffn_width=config.get("n_inner") or 4 * found["width"]),
        lambda shape: {"n_inner": shape.ffn_width, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        head_dim=False,
    ),
    "gpt_neox": FamilyConfig(
        ("gpt_neox",), ("GPTNeoXForCausalLM", "GPTNeoXModel"),
        (
            *_SIZES[:5], _SIZES[6], _plain("norm_epsilon", "layer_norm_eps", 1e-5), _BIAS_TRUE,
            _plain("tied", "tie_word_embeddings", False),
        ),
        {"hidden_act": ("gelu",)}, _neox, _neox_fields, head_dim=False,
    ),
    "falcon": FamilyConfig(
        ("falcon", "RefinedWebModel", "RefinedWeb"), ("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
        (
            *_SIZES[:1], _plain("context", "max_position_embeddings", 2048), *_SIZES[2:5],
            _plain("norm_epsilon", "layer_norm_epsilon", 1e-5), _plain("tied", "tie_word_embeddings", True),
            ConfigField(("qkv_bias", "output_bias", "ffn_bias"), "bias", False),
        ),
        {"alibi": (False, None), "activation": ("gelu",)}, _falcon, _falcon_fields, head_dim=False,
    ),
    "gpt_oss": FamilyConfig(
        ("gpt_oss",), ("GptOssForCausalLM", "GptOssModel"),
        (*_LLAMA, _plain("experts", "num_local_experts"), *_EXPERTS),
        {
            **_SILU, "attention_bias": (True,), "swiglu_limit": (7.0, None), "swiglu_alpha": (1.702, None),
        },
        _gpt_oss, _layer_types, rope_theta=150000.0,
    ),
}  # fmt: skip
