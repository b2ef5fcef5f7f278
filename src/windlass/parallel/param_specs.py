"""How tensor parallelism divides each kind of weight of a model; without torch.

A shape lists its weights as a partition groups them: the embedding goes with the first stage, the head with
the last, and a layer's weights with the layer.
"""

from __future__ import annotations

import re

from windlass.spec.shape import Network

_EXPERT = re.compile(r"\.experts\.\d+\.")
_PROJECTIONS = ("attention.query", "attention.key", "attention.value", ".up", ".gate")
COLUMNS = tuple(f"{name}.{kind}" for name in _PROJECTIONS for kind in ("weight", "bias"))
"""Products of which each process computes some outputs: weight and bias are divided along 0."""
ROWS = ("attention.output.weight", ".down.weight")
"""Products to which each process adds what its inputs give: the weight is divided along 1; the bias comes
once, after the sum, so every process has it (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""
WORDS = ("embedding.weight", "head.weight", "head.bias")
"""Weights with a row or a value for each word of the vocabulary: divided along 0."""
SCALARS = ("attention.sinks",)
"""One value for each head: divided along 0."""


def features_of(shape: Network) -> dict[str, int]:
    """Name each kind of weight that tensor parallelism divides, and the dimension along which."""
    found: dict[str, int] = {}
    for layer in range(shape.layers):
        for name in map(kind_of, shape.layer_weights(layer)):
            if name.endswith(COLUMNS) or name in SCALARS:
                found[name] = 0
            elif name.endswith(ROWS):
                found[name] = 1
    outside = {**shape.embedding_weights(), **shape.head_weights()}
    return found | {name: 0 for name in WORDS if name in outside}


def kind_of(name: str) -> str:
    """Return a weight's name without the number of its layer and of its expert."""
    inside = name.split(".", 2)[2] if name.startswith("layers.") else name
    return _EXPERT.sub(".experts.", inside)
