"""The size of every weight of a family, by our names, without building the model.

Rows are outputs of a matrix, columns its inputs.
"""

from __future__ import annotations

from windlass.spec.shape import BertShape, Gpt2Shape, LlamaShape, MlpShape, Network

Sizes = dict[str, tuple[int, ...]]


def weight_sizes(shape: Network) -> Sizes:
    """Return the size of every weight that a model of this shape stores; a tied matrix is there once."""
    match shape:
        case LlamaShape():
            outside, inside = _of_llama(shape)
        case MlpShape():
            outside, inside = _of_mlp(shape)
        case _:
            outside, inside = _of_the_biased(shape)
    layers = {
        f"layers.{layer}.{name}": size for layer in range(shape.layers) for name, size in inside.items()
    }
    return {**outside, **layers}


def _of_llama(shape: LlamaShape) -> tuple[Sizes, Sizes]:
    width, keys = shape.width, shape.kv_heads * shape.head_width
    outside: Sizes = {"embedding.weight": (shape.vocabulary, width), "norm.weight": (width,)}
    if not shape.tied:
        outside["head.weight"] = (shape.vocabulary, width)
    return outside, {
        "attention_norm.weight": (width,),
        "attention.query.weight": (shape.attention_width, width),
        "attention.key.weight": (keys, width),
        "attention.value.weight": (keys, width),
        "attention.output.weight": (width, shape.attention_width),
        "ffn_norm.weight": (width,),
        "ffn.gate.weight": (shape.ffn_width, width),
        "ffn.up.weight": (shape.ffn_width, width),
        "ffn.down.weight": (width, shape.ffn_width),
    }


def _of_mlp(shape: MlpShape) -> tuple[Sizes, Sizes]:
    width, inner = shape.width, shape.ffn_width
    outside: Sizes = {
        "embedding.weight": (shape.vocabulary, width),
        "mix.weight": (width, shape.window * width),
        "norm.weight": (width,),
    }
    return outside, {
        "ffn_norm.weight": (width,),
        "ffn.up.weight": (inner, width),
        "ffn.down.weight": (width, inner),
    }


def _of_the_biased(shape: Gpt2Shape | BertShape) -> tuple[Sizes, Sizes]:
    width = shape.width
    outside = {"embedding.weight": (shape.vocabulary, width), "positions.weight": (shape.context, width)}
    if isinstance(shape, BertShape):
        outside["token_types.weight"] = (shape.token_types, width)
        ends = {
            **_norm("embedding_norm", width),
            **_linear("head.dense", width, width),
            **_norm("head.norm", width),
            "head.bias": (shape.vocabulary,),
        }
    else:
        ends = _norm("norm", width)
    inside: Sizes = {**_norm("attention_norm", width), **_norm("ffn_norm", width)}
    for name in ("query", "key", "value", "output"):
        inside |= _linear(f"attention.{name}", width, width)
    inside |= _linear("ffn.up", shape.ffn_width, width) | _linear("ffn.down", width, shape.ffn_width)
    return {**outside, **ends}, inside


def _linear(name: str, rows: int, columns: int) -> Sizes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, width: int) -> Sizes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
