"""Every trained weight of a model: name, shape, and how tensor parallelism divides it; without torch.

Weights are grouped as a partition groups them: the embedding goes with the first stage, the head with the
last, and a layer's weights with the layer. Tests build every family and compare.
"""

from __future__ import annotations

from collections.abc import Mapping

from windlass.spec.shape import BertShape, LlamaShape, MlpShape, Network

Weights = Mapping[str, tuple[int, ...]]
"""Shapes by name; inside a layer, the name without "layers.N."."""

COLUMNS = ("attention.query", "attention.key", "attention.value", "ffn.up", "ffn.gate")
"""Products of which each process computes some outputs: weight and bias are divided along 0."""
ROWS = ("attention.output", "ffn.down")
"""Products to which each process adds what its inputs give: the weight is divided along 1; the bias comes
once, after the sum, so every process has it (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""
WORDS = ("embedding.weight", "head.weight", "head.bias")
"""Weights with a row or a value for each word of the vocabulary: divided along 0."""


def layer_weights(shape: Network) -> Weights:
    """Return the weights of one layer; all layers of a family are alike."""
    width, inner, biased = shape.width, shape.ffn_width, _biased(shape)
    if isinstance(shape, MlpShape):
        matrices = {"ffn.up.weight": (inner, width), "ffn.down.weight": (width, inner)}
        return matrices | _norm("ffn_norm", shape)
    rows = {
        "attention.query": (shape.attention_width, width),
        "attention.key": (_kv_width(shape), width),
        "attention.value": (_kv_width(shape), width),
        "attention.output": (width, shape.attention_width),
        "ffn.up": (inner, width),
        "ffn.down": (width, inner),
    } | ({} if biased else {"ffn.gate": (inner, width)})
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": size for name, size in rows.items()}
    if biased:
        found |= {f"{name}.bias": size[:1] for name, size in rows.items()}
    return found | _norm("attention_norm", shape) | _norm("ffn_norm", shape)


def embedding_weights(shape: Network) -> Weights:
    """Return the weights that turn tokens into the residual stream."""
    found: dict[str, tuple[int, ...]] = {"embedding.weight": (shape.vocabulary, shape.width)}
    if isinstance(shape, MlpShape):
        return found | {"mix.weight": (shape.width, shape.window * shape.width)}
    if not isinstance(shape, LlamaShape):
        found["positions.weight"] = (shape.context, shape.width)
    if isinstance(shape, BertShape):
        found["token_types.weight"] = (shape.token_types, shape.width)
        found |= _norm("embedding_norm", shape)
    return found


def head_weights(shape: Network) -> Weights:
    """Return the weights that turn the residual stream into logits.

    A tied output matrix is among them under the embedding's name: a pipeline keeps a copy at both ends.
    """
    is_tied = not isinstance(shape, LlamaShape) or shape.tied
    matrix = "embedding.weight" if is_tied else "head.weight"
    found: dict[str, tuple[int, ...]] = {matrix: (shape.vocabulary, shape.width)}
    if not isinstance(shape, BertShape):
        return found | _norm("norm", shape)
    dense = {"head.dense.weight": (shape.width, shape.width), "head.dense.bias": (shape.width,)}
    return found | dense | _norm("head.norm", shape) | {"head.bias": (shape.vocabulary,)}


def features_of(shape: Network) -> dict[str, int]:
    """Name each kind of weight that tensor parallelism divides, and the dimension along which."""
    outside = {**embedding_weights(shape), **head_weights(shape)}
    found = {name: 0 for name in layer_weights(shape) if name.startswith(COLUMNS)}
    found |= {f"{name}.weight": 1 for name in ROWS if f"{name}.weight" in layer_weights(shape)}
    return found | {name: 0 for name in WORDS if name in outside}


def kind_of(name: str) -> str:
    """Return a weight's name without the number of its layer."""
    return name.split(".", 2)[2] if name.startswith("layers.") else name


def _kv_width(shape: Network) -> int:
    return shape.kv_heads * shape.head_width if isinstance(shape, LlamaShape) else shape.width


def _norm(name: str, shape: Network) -> dict[str, tuple[int, ...]]:
    parts = ("weight", "bias") if _biased(shape) else ("weight",)
    return {f"{name}.{part}": (shape.width,) for part in parts}


def _biased(shape: Network) -> bool:
    return not isinstance(shape, LlamaShape | MlpShape)
