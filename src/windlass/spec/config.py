"""Shapes to and from the config.json of Hugging Face, without loading any of its libraries.

Input: the parsed config.json of a decoder (decoder_config.py has the table of families) or of a
BertForMaskedLM directory, or of a family that only Windlass has (native_config.py).
Output: a Shape, or an error that names the field we cannot honour. A field that changes what the model
computes is either understood or refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from windlass.spec.errors import BadInput, did_you_mean
from windlass.spec.model.decoder_config import CONFIGS, decoder_fields, decoder_from_config, unsupported
from windlass.spec.native_config import is_own, own_fields, own_shape
from windlass.spec.shape import BertShape, DecoderShape, HmmShape, MlpShape, Network, NgramShape, Shape

Config = Mapping[str, Any]

ARCHITECTURES = {
    **{family: known.architectures for family, known in CONFIGS.items()},
    "bert": ("BertForMaskedLM", "BertForPreTraining", "BertModel"),
}
"""Architectures that can be read, by family; the first is the one that is written."""

BARE_BERT = "BertModel"
"""The encoder alone, as models for embeddings are published."""

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")

_ALL = {"quantization_config": (None,), "is_encoder_decoder": (None, False)}
_BERT = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True,),
}
"""Fields that change what BERT computes, and the values that are computed."""


def network_from_config(config: Config, where: str) -> Network:
    """Read the shape of a model that is trained by gradients."""
    shape = shape_from_config(config, where)
    if isinstance(shape, NgramShape | HmmShape):
        raise BadInput(
            f"{where}: is an {shape.family} model, which has no weights that learn by gradients",
            hint="supported here: decoders, bert, mlp",
        )
    return shape


def shape_from_config(config: Config, where: str) -> Shape:
    """Read a shape; `where` names the file in errors."""
    if not isinstance(config, Mapping):
        raise BadInput(f"{where}: holds a {type(config).__name__}, not a table of fields")
    if is_own(config):
        return own_shape(config, where)
    family = _family(config, where)
    for field, allowed in (_ALL | (_BERT if family == "bert" else {})).items():
        if field in config and config[field] not in allowed:
            raise unsupported(where, field, config[field], [a for a in allowed if a is not None] or [None])
    try:
        return _bert(config, where) if family == "bert" else decoder_from_config(family, config, where)
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
        "architectures": [_architecture(shape)],
        "model_type": "bert" if isinstance(shape, BertShape) else CONFIGS[shape.family].model_types[0],
        "dtype": dtype,
        "torch_dtype": dtype,
        **tokens,
        **(_bert_fields(shape) if isinstance(shape, BertShape) else decoder_fields(shape)),
    }


def special_tokens_of(config: Config) -> dict[str, int | list[int] | None]:
    """Pick the ids of special tokens out of a config."""
    return {key: config[key] for key in SPECIAL_TOKENS if key in config}


def _family(config: Config, where: str) -> str:
    model_type, names = config.get("model_type"), config.get("architectures") or []
    family = next(
        (
            family
            for family, known in ARCHITECTURES.items()
            if model_type in _model_types(family) or (not model_type and names[:1] == [known[0]])
        ),
        None,
    )
    if family is None:
        raise unsupported(
            where, "model_type", model_type, [_model_types(family)[0] for family in ARCHITECTURES]
        )
    if names and names[0] not in ARCHITECTURES[family]:
        raise unsupported(where, "architectures", names, list(ARCHITECTURES[family]))
    return family


def _architecture(shape: DecoderShape | BertShape) -> str:
    is_bare = isinstance(shape, BertShape) and not shape.masked_head
    return BARE_BERT if is_bare else ARCHITECTURES[shape.family][0]


def _model_types(family: str) -> tuple[str, ...]:
    return CONFIGS[family].model_types if family in CONFIGS else (family,)


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
        masked_head=(config.get("architectures") or [None])[0] != BARE_BERT,
    )


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
