"""Shapes to and from the config.json of Hugging Face, without loading any of its libraries.

Input: the parsed config.json of a LlamaForCausalLM, GPT2LMHeadModel or BertForMaskedLM directory, or of a
family that only Windlass has (native_config.py).
Output: a Shape, or an error that names the field we cannot honour. A field that changes what the model
computes is either understood or refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.native_config import is_own, own_fields, own_shape
from windlass.spec.shape import (
    BertShape,
    Gpt2Shape,
    HmmShape,
    LlamaShape,
    MlpShape,
    Network,
    NgramShape,
    RopeScaling,
    Shape,
)

Config = Mapping[str, Any]

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaModel"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Model", "GPT2DoubleHeadsModel"),
    "bert": ("BertForMaskedLM", "BertForPreTraining", "BertModel"),
}
"""Architectures that can be read, by family; the first is the one that is written."""

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")

_ALL = {"quantization_config": (None,), "is_encoder_decoder": (None, False)}
SUPPORTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": _ALL
    | {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False, None),
        "mlp_bias": (False, None),
        "sliding_window": (None,),
        "partial_rotary_factor": (1.0, None),
    },
    "gpt2": _ALL
    | {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False, None),
        "tie_word_embeddings": (True,),
    },
    "bert": _ALL
    | {
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
        "tie_word_embeddings": (True,),
    },
}
"""Fields that change what is computed, and the values that our families compute."""

_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_context",
}


def network_from_config(config: Config, where: str) -> Network:
    """Read the shape of a model that is trained by gradients."""
    shape = shape_from_config(config, where)
    if isinstance(shape, NgramShape | HmmShape):
        raise BadInput(
            f"{where}: is an {shape.family} model, which has no weights that learn by gradients",
            hint="supported here: llama, gpt2, bert, mlp",
        )
    return shape


def shape_from_config(config: Config, where: str) -> Shape:
    """Read a shape; `where` names the file in errors."""
    if not isinstance(config, Mapping):
        raise BadInput(f"{where}: holds a {type(config).__name__}, not a table of fields")
    if is_own(config):
        return own_shape(config, where)
    family = _family(config, where)
    for field, allowed in SUPPORTED[family].items():
        if field in config and config[field] not in allowed:
            raise _unsupported(where, field, config[field], [a for a in allowed if a is not None] or [None])
    try:
        return _READERS[family](config, where)
    except ValidationError as error:
        detail = error.errors()[0]
        reason = detail.get("ctx", {}).get("error", detail["msg"])
        field = ".".join(str(part) for part in detail["loc"])
        raise BadInput(f"{where}: {field + ': ' if field else ''}{reason}") from None


def config_from_shape(
    shape: Shape,
    *,
    dtype: str = "float32",
    special_tokens: Mapping[str, int | list[int] | None] | None = None,
) -> dict[str, Any]:
    """Write the fields that transformers reads, of both its old and its present naming.

    `special_tokens` are the SPECIAL_TOKENS of the tokenizer; those left out are written as null, because
    a reader's default id may lie outside a small vocabulary.
    """
    given = special_tokens or {}
    unknown = [key for key in given if key not in SPECIAL_TOKENS]
    if unknown:
        raise BadInput(
            f"special token field '{unknown[0]}'", hint=did_you_mean(unknown[0], list(SPECIAL_TOKENS))
        )
    tokens = {key: given.get(key) for key in SPECIAL_TOKENS}
    if isinstance(shape, MlpShape | NgramShape | HmmShape):
        return {"dtype": dtype, **tokens, **own_fields(shape)}
    return {
        "architectures": [ARCHITECTURES[shape.family][0]],
        "model_type": shape.family,
        "dtype": dtype,
        "torch_dtype": dtype,
        **tokens,
        **_fields(shape),
    }


def special_tokens_of(config: Config) -> dict[str, int | list[int] | None]:
    """Pick the ids of special tokens out of a config."""
    return {key: config[key] for key in SPECIAL_TOKENS if key in config}


def _family(config: Config, where: str) -> str:
    model_type, names = config.get("model_type"), config.get("architectures") or []
    family = next(
        (
            f
            for f, known in ARCHITECTURES.items()
            if f == model_type or (not model_type and names[:1] == [known[0]])
        ),
        None,
    )
    if family is None:
        raise _unsupported(where, "model_type", model_type, list(ARCHITECTURES))
    if names and names[0] not in ARCHITECTURES[family]:
        raise _unsupported(where, "architectures", names, list(ARCHITECTURES[family]))
    return family


def _llama(config: Config, where: str) -> LlamaShape:
    size = _sizes(config, where)
    width, heads = size("hidden_size"), size("num_attention_heads")
    # 0 means "not given"; a value equal to the one derived from the width adds nothing.
    head_width = size("head_dim", 0)
    theta, scaling = _rope(config, where)
    return LlamaShape(
        vocabulary=size("vocab_size"),
        context=size("max_position_embeddings"),
        layers=size("num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        explicit_head_width=None if head_width * heads in (0, width) else head_width,
        ffn_width=size("intermediate_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
    )


def _gpt2(config: Config, where: str) -> Gpt2Shape:
    size = _sizes(config, where)
    return Gpt2Shape(
        vocabulary=size("vocab_size"),
        context=size("n_positions"),
        layers=size("n_layer"),
        width=size("n_embd"),
        heads=size("n_head"),
        ffn_width=size("n_inner", 4 * size("n_embd")),
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
    )


def _bert(config: Config, where: str) -> BertShape:
    size = _sizes(config, where)
    return BertShape(
        vocabulary=size("vocab_size"),
        context=size("max_position_embeddings"),
        layers=size("num_hidden_layers"),
        width=size("hidden_size"),
        heads=size("num_attention_heads"),
        ffn_width=size("intermediate_size"),
        token_types=size("type_vocab_size", 2),
        norm_epsilon=config.get("layer_norm_eps", 1e-12),
    )


_READERS: dict[str, Callable[[Config, str], LlamaShape | Gpt2Shape | BertShape]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
}


def _sizes(config: Config, where: str) -> Callable[..., int]:
    def size(field: str, default: int | None = None) -> int:
        value = config.get(field)
        if value is None and default is not None:
            return default
        if value is None:
            raise BadInput(f"{where}: '{field}' is missing")
        if type(value) is not int or value < 1:
            raise BadInput(f"{where}: '{field}' is {value!r}, not a whole number of at least 1")
        return value

    return size


def _rope(config: Config, where: str) -> tuple[float, RopeScaling | None]:
    """Read rotary positions from `rope_parameters`, or from `rope_theta` and `rope_scaling`."""
    field = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    table = config.get(field) or {}
    if not isinstance(table, Mapping):
        raise BadInput(f"{where}: '{field}' is {table!r}, not a table")
    theta = table.get("rope_theta", config.get("rope_theta", 10000.0))
    if type(theta) not in (int, float) or theta <= 0:
        raise BadInput(f"{where}: 'rope_theta' is {theta!r}, not a number above 0")
    kind = table.get("rope_type", table.get("type", "default"))
    if table.get("partial_rotary_factor") not in (None, 1.0):
        raise _unsupported(where, f"{field}.partial_rotary_factor", table["partial_rotary_factor"], [1.0])
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise _unsupported(where, f"{field}.rope_type", kind, ["default", "llama3"])
    missing = [key for key in _LLAMA3 if key not in table]
    if missing:
        raise BadInput(f"{where}: '{field}' of type llama3 lacks '{missing[0]}'")
    return float(theta), RopeScaling.model_validate({ours: table[theirs] for theirs, ours in _LLAMA3.items()})


def _fields(shape: LlamaShape | Gpt2Shape | BertShape) -> dict[str, Any]:
    match shape:
        case LlamaShape():
            return _llama_fields(shape)
        case Gpt2Shape():
            return _gpt2_fields(shape)
        case BertShape():
            return _bert_fields(shape)


def _llama_fields(shape: LlamaShape) -> dict[str, Any]:
    scaling = None
    if shape.rope_scaling is not None:
        ours = shape.rope_scaling.model_dump()
        scaling = {"rope_type": "llama3", **{theirs: ours[name] for theirs, name in _LLAMA3.items()}}
    return {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "intermediate_size": shape.ffn_width,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_parameters": {"rope_theta": shape.rope_theta, **(scaling or {"rope_type": "default"})},
        "rope_theta": shape.rope_theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": shape.tied,
    }


def _gpt2_fields(shape: Gpt2Shape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocabulary,
        "n_positions": shape.context,
        "n_layer": shape.layers,
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_inner": shape.ffn_width,
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "layer_norm_epsilon": shape.norm_epsilon,
        "tie_word_embeddings": True,
    }


def _bert_fields(shape: BertShape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn_width,
        "type_vocab_size": shape.token_types,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": shape.norm_epsilon,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }


def _unsupported(where: str, field: str, value: Any, supported: list[Any]) -> BadInput:
    listed = ", ".join("null" if s is None else str(s) for s in supported)
    return BadInput(f"{where}: {field} = {value!r} is not supported", hint=f"supported: {listed}")
