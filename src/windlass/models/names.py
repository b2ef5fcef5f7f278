"""Which tensor of ours is which tensor of Hugging Face, for every family.

The maps are data, read in both directions. GPT-2's matrices are transposed: its published code
multiplies from the other side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from windlass.spec.shape import LlamaShape, Network


@dataclass(frozen=True)
class Pair:
    """One tensor of theirs, and the tensors of ours that it holds: one, or several in a row."""

    ours: tuple[str, ...]
    theirs: str
    transposed: bool = False


@dataclass(frozen=True)
class Naming:
    """The names of one family."""

    prefix: str
    """The prefix of the body's tensors; files of the bare body leave it out."""
    layer: str
    """Where layer {} is."""
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    """Ours to theirs, outside of the layers and inside one."""
    copies: Mapping[str, str]
    """Tensors that some files store although they are tied: theirs, to the one of ours that they copy."""
    harmless: re.Pattern[str]
    """Tensors that some files hold and that our models do not need: tables, and heads of other tasks."""
    transposed: frozenset[str] = field(default_factory=frozenset)
    """Theirs that are stored transposed."""
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Theirs inside a layer that hold several of ours one after the other."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of the first published files, to the present ones."""

    def pairs(self, shape: Network) -> Iterator[Pair]:
        """Yield every tensor that a model of this shape stores."""
        for ours, theirs in self.outside.items():
            if ours != "head.weight" or not _tied(shape):
                yield Pair((ours,), theirs)
        for layer in range(shape.layers):
            at = self.layer.format(layer)
            for theirs, parts in self._inside():
                names = tuple(f"layers.{layer}.{part}" for part in parts)
                yield Pair(names, f"{at}.{theirs}", theirs in self.transposed)

    def _inside(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for ours, theirs in self.inside.items():
            yield theirs, (ours,)
        yield from self.joined.items()

    def present(self, name: str) -> str:
        """Return the present full name of a tensor found in a file."""
        for old, new in self.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        head = name.partition(".")[0]
        outside_body = {theirs.partition(".")[0] for theirs in (*self.outside.values(), *self.copies)}
        return name if head in outside_body else f"{self.prefix}{name}"


def _tied(shape: Network) -> bool:
    return not isinstance(shape, LlamaShape) or shape.tied


def _linear(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


LLAMA = Naming(
    prefix="model.",
    layer="model.layers.{}",
    outside={
        "embedding.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
    inside={
        "attention_norm.weight": "input_layernorm.weight",
        "attention.query.weight": "self_attn.q_proj.weight",
        "attention.key.weight": "self_attn.k_proj.weight",
        "attention.value.weight": "self_attn.v_proj.weight",
        "attention.output.weight": "self_attn.o_proj.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "ffn.gate.weight": "mlp.gate_proj.weight",
        "ffn.up.weight": "mlp.up_proj.weight",
        "ffn.down.weight": "mlp.down_proj.weight",
    },
    copies={"lm_head.weight": "embedding.weight"},
    harmless=re.compile(r".*rotary_emb\.inv_freq"),
)

GPT2 = Naming(
    prefix="transformer.",
    layer="transformer.h.{}",
    outside={
        "embedding.weight": "transformer.wte.weight",
        "positions.weight": "transformer.wpe.weight",
        **_linear("norm", "transformer.ln_f"),
    },
    inside={
        **_linear("attention_norm", "ln_1"),
        **_linear("attention.output", "attn.c_proj"),
        **_linear("ffn_norm", "ln_2"),
        **_linear("ffn.up", "mlp.c_fc"),
        **_linear("ffn.down", "mlp.c_proj"),
    },
    copies={"lm_head.weight": "embedding.weight"},
    harmless=re.compile(r".*\.attn\.(masked_)?bias|transformer\.multiple_choice_head\..*"),
    transposed=frozenset(
        f"{matrix}.weight" for matrix in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ),
    joined={
        f"attn.c_attn.{part}": tuple(f"attention.{matrix}.{part}" for matrix in ("query", "key", "value"))
        for part in ("weight", "bias")
    },
)

BERT = Naming(
    prefix="bert.",
    layer="bert.encoder.layer.{}",
    outside={
        "embedding.weight": "bert.embeddings.word_embeddings.weight",
        "positions.weight": "bert.embeddings.position_embeddings.weight",
        "token_types.weight": "bert.embeddings.token_type_embeddings.weight",
        **_linear("embedding_norm", "bert.embeddings.LayerNorm"),
        **_linear("head.dense", "cls.predictions.transform.dense"),
        **_linear("head.norm", "cls.predictions.transform.LayerNorm"),
        "head.bias": "cls.predictions.bias",
    },
    inside={
        **_linear("attention.query", "attention.self.query"),
        **_linear("attention.key", "attention.self.key"),
        **_linear("attention.value", "attention.self.value"),
        **_linear("attention.output", "attention.output.dense"),
        **_linear("attention_norm", "attention.output.LayerNorm"),
        **_linear("ffn.up", "intermediate.dense"),
        **_linear("ffn.down", "output.dense"),
        **_linear("ffn_norm", "output.LayerNorm"),
    },
    copies={
        "cls.predictions.decoder.weight": "embedding.weight",
        "cls.predictions.decoder.bias": "head.bias",
    },
    harmless=re.compile(
        r"cls\.seq_relationship\..*|bert\.pooler\..*|bert\.embeddings\.(position|token_type)_ids"
    ),
    renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
)

_OWN = {
    "embedding.weight": "embedding.weight",
    "mix.weight": "mix.weight",
    "norm.weight": "norm.weight",
}
_OWN_LAYER = {name: name for name in ("ffn_norm.weight", "ffn.up.weight", "ffn.down.weight")}
MLP = Naming(
    prefix="", layer="layers.{}", outside=_OWN, inside=_OWN_LAYER, copies={}, harmless=re.compile(r"(?!)")
)
"""Only Windlass has this family, so the names in its files are ours."""

NAMINGS: Mapping[str, Naming] = {"llama": LLAMA, "gpt2": GPT2, "bert": BERT, "mlp": MLP}
