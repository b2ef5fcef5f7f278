"""Which tensor of ours is which tensor of Hugging Face, for every family.

The maps are data, read in both directions: linear maps and norms by name, and what a file stores in another
arrangement than we do (several of ours in one tensor, transposed, by heads, by experts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from windlass.spec.shape import DecoderShape, Network

Arrangement = Literal["rows", "heads", "experts"]
"""How one of theirs holds several of ours. rows: one after the other. heads: for each key head its queries,
then the key, then the value (GPT-NeoX, Falcon). experts: for each expert, transposed, gate and up in turn."""


@dataclass(frozen=True)
class Pair:
    """One tensor of theirs, and the tensors of ours that it holds."""

    ours: tuple[str, ...]
    theirs: str
    sizes: tuple[tuple[int, ...], ...]
    """Of ours."""
    transposed: bool = False
    arrangement: Arrangement = "rows"
    groups: tuple[int, int] = (1, 1)
    """Key heads, and query heads for each of them (heads); experts, and matrices for each (experts)."""

    @property
    def stored_size(self) -> tuple[int, ...]:
        """The size of theirs."""
        first = self.sizes[0]
        if self.arrangement == "experts":
            experts, each = self.groups
            return (experts, *first[1:], each * first[0])
        size = (sum(one[0] for one in self.sizes), *first[1:])
        return size[::-1] if self.transposed else size

    def part(self, values: Any, which: int) -> Any:
        """Return the view of one of ours in theirs (numpy or torch): as many numbers, perhaps other axes."""
        if self.arrangement == "experts":
            _, each = self.groups
            one = values[which // each]
            one = one.T if one.ndim == 2 else one
            return one[which % each :: each]
        if self.transposed:
            values = values.T
        if self.arrangement == "heads":
            return self._by_heads(values, which)
        start = sum(size[0] for size in self.sizes[:which])
        return values[start : start + self.sizes[which][0]]

    def _by_heads(self, values: Any, which: int) -> Any:
        keys, queries = self.groups
        by_head = values.reshape(keys, queries + 2, -1, *values.shape[1:])
        return by_head[:, :queries] if which == 0 else by_head[:, queries + which - 1]


@dataclass(frozen=True)
class Naming:
    """The names of one family. A name stands for its weight and its bias."""

    prefix: str
    """The prefix of the body's tensors; files of the bare body leave it out."""
    layer: str
    """Where layer {} is."""
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    """Ours to theirs, outside of the layers and inside one; * stands for the number of an expert."""
    copies: Mapping[str, str]
    """Tensors that some files store although they are tied: theirs, to the one of ours that they copy."""
    harmless: re.Pattern[str]
    """Tensors that some files hold and that our models do not need: tables, and heads of other tasks."""
    transposed: frozenset[str] = field(default_factory=frozenset)
    """Theirs whose weights are stored transposed."""
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Theirs inside a layer that hold several of ours."""
    arrangement: Mapping[str, Arrangement] = field(default_factory=dict)
    """The arrangement of each of those tensors; those left out hold rows in order."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Endings of the first published files, to the present ones."""

    def pairs(self, shape: Network) -> Iterator[Pair]:
        """Yield every tensor that a model of this shape stores."""
        outside = {**shape.embedding_weights(), **shape.head_weights()}
        for ours, size in outside.items():
            base, _, kind = ours.rpartition(".")
            yield Pair((ours,), f"{self.outside[base]}.{kind}", (size,))
        for layer in range(shape.layers):
            yield from self._inside(shape, layer)

    def present(self, name: str) -> str:
        """Return the present full name of a tensor found in a file."""
        for old, new in self.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        head = name.partition(".")[0]
        outside_body = {theirs.partition(".")[0] for theirs in (*self.outside.values(), *self.copies)}
        return name if head in outside_body else f"{self.prefix}{name}"

    def _inside(self, shape: Network, layer: int) -> Iterator[Pair]:
        sizes = shape.layer_weights(layer)
        at, done = self.layer.format(layer), set[str]()
        for theirs, bases in self.joined.items():
            for kind in ("weight", "bias"):
                ours = [name for name in _expanded(bases, kind, shape) if name in sizes]
                if ours:
                    done |= set(ours)
                    yield self._joined(theirs, kind, ours, at, layer, shape)
        for name, size in sizes.items():
            if name not in done:
                base, _, kind = name.rpartition(".")
                theirs, is_bare = self._theirs(base, kind)
                full = f"{at}.{theirs}" if is_bare else f"{at}.{theirs}.{kind}"
                turned = kind == "weight" and theirs in self.transposed
                yield Pair((f"layers.{layer}.{name}",), full, (size,), turned)

    def _theirs(self, base: str, kind: str) -> tuple[str, bool]:
        """Return their name, and whether it is that of a parameter and not of a module."""
        if f"{base}.{kind}" in self.inside:
            return self.inside[f"{base}.{kind}"], True
        generic = re.sub(r"\.experts\.(\d+)\.", ".experts.*.", base)
        number = re.search(r"\.experts\.(\d+)\.", base)
        return self.inside[generic].replace("*", number[1] if number else "*"), False

    def _joined(
        self, theirs: str, kind: str, ours: Sequence[str], at: str, layer: int, shape: Network
    ) -> Pair:
        sizes = shape.layer_weights(layer)
        arrangement = self.arrangement.get(theirs, "rows")
        groups = (1, 1)
        if arrangement == "heads" and isinstance(shape, DecoderShape):
            groups = (shape.kv_heads, shape.heads // shape.kv_heads)
        if arrangement == "experts" and isinstance(shape, DecoderShape):
            groups = (shape.experts, len(ours) // shape.experts)
            ending = "" if kind == "weight" else "_bias"
        else:
            ending = f".{kind}"
        return Pair(
            tuple(f"layers.{layer}.{name}" for name in ours), f"{at}.{theirs}{ending}",
            tuple(sizes[name] for name in ours), kind == "weight" and theirs in self.transposed,
            arrangement, groups,
        )  # fmt: skip


def naming_of(shape: Network) -> Naming:
    if shape.family == "falcon" and shape.residual == "parallel" and not shape.shared_norm:
        return FALCON_TWO_NORMS
    return NAMINGS[shape.family]


def _expanded(bases: Sequence[str], kind: str, shape: Network) -> list[str]:
    """Return the names of all experts, expert by expert."""
    names = [f"{base}.{kind}" for base in bases]
    if not isinstance(shape, DecoderShape) or not any("*" in name for name in names):
        return names
    return [name.replace("*", str(expert)) for expert in range(shape.experts) for name in names]


_ATTENTION = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.sinks": "self_attn.sinks",
}
_FFN = {"ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
_NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_QWEN_EXPERTS = {
    "ffn.router": "mlp.gate",
    "ffn.experts.*.gate": "mlp.experts.*.gate_proj",
    "ffn.experts.*.up": "mlp.experts.*.up_proj",
    "ffn.experts.*.down": "mlp.experts.*.down_proj",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared_gate": "mlp.shared_expert_gate",
}
_QKV = ("attention.query", "attention.key", "attention.value")


def _like_llama(inside: Mapping[str, str], **other: Any) -> Naming:
    """Return the names that most families share, with what is different in one."""
    return Naming(
        prefix="model.",
        layer="model.layers.{}",
        outside=other.pop("outside", _OUTSIDE),
        inside=inside,
        copies={"lm_head.weight": "embedding.weight"},
        harmless=re.compile(r".*rotary_emb\.inv_freq"),
        **other,
    )


LLAMA = _like_llama(_ATTENTION | _NORMS | _FFN)
GEMMA2 = _like_llama(
    _ATTENTION | _FFN | _POST_NORMS
    | {"attention_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
)  # fmt: skip
OLMO2 = _like_llama(_ATTENTION | _FFN | _POST_NORMS)
QWEN_MOE = _like_llama(_ATTENTION | _NORMS | _FFN | _QWEN_EXPERTS)
MIXTRAL = _like_llama(
    _ATTENTION | _NORMS
    | {
        "ffn.router": "block_sparse_moe.gate",
        "ffn.experts.*.gate": "block_sparse_moe.experts.*.w1",
        "ffn.experts.*.up": "block_sparse_moe.experts.*.w3",
        "ffn.experts.*.down": "block_sparse_moe.experts.*.w2",
    }
)  # fmt: skip
PHI = _like_llama(
    {
        **{ours: theirs for ours, theirs in _ATTENTION.items() if ours in _QKV},
        "attention.output": "self_attn.dense",
        "attention_norm": "input_layernorm",
        "ffn.up": "mlp.fc1",
        "ffn.down": "mlp.fc2",
    },
    outside=_OUTSIDE | {"norm": "model.final_layernorm"},
)
PHI3 = _like_llama(
    _NORMS | {"attention.output": "self_attn.o_proj", "ffn.down": "mlp.down_proj"},
    joined={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": ("ffn.gate", "ffn.up")},
)
STARCODER2 = _like_llama(_ATTENTION | _NORMS | {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"})
GPT_OSS = _like_llama(
    _ATTENTION | _NORMS | {"ffn.router": "mlp.router"},
    joined={
        "mlp.experts.gate_up_proj": ("ffn.experts.*.gate", "ffn.experts.*.up"),
        "mlp.experts.down_proj": ("ffn.experts.*.down",),
    },
    arrangement={"mlp.experts.gate_up_proj": "experts", "mlp.experts.down_proj": "experts"},
)
GPT_NEOX = Naming(
    prefix="gpt_neox.",
    layer="gpt_neox.layers.{}",
    outside={"embedding": "gpt_neox.embed_in", "norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    inside={
        **_NORMS,
        "attention.output": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    },
    copies={"embed_out.weight": "embedding.weight", "lm_head.weight": "embedding.weight"},
    harmless=re.compile(r".*\.attention\.(masked_)?bias|.*rotary_emb\.inv_freq"),
    joined={"attention.query_key_value": _QKV},
    arrangement={"attention.query_key_value": "heads"},
)
FALCON = Naming(
    prefix="transformer.",
    layer="transformer.h.{}",
    outside={"embedding": "transformer.word_embeddings", "norm": "transformer.ln_f", "head": "lm_head"},
    inside={
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attention.output": "self_attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    },
    copies={"lm_head.weight": "embedding.weight"},
    harmless=re.compile(r".*rotary.*inv_freq"),
    joined={"self_attention.query_key_value": _QKV},
    arrangement={"self_attention.query_key_value": "heads"},
)
FALCON_TWO_NORMS = replace(
    FALCON, inside={**FALCON.inside, "attention_norm": "ln_attn", "ffn_norm": "ln_mlp"}
)
"""Falcon 40B and later."""

GPT2 = Naming(
    prefix="transformer.",
    layer="transformer.h.{}",
    outside={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    inside={
        "attention_norm": "ln_1",
        "attention.output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    },
    copies={"lm_head.weight": "embedding.weight"},
    harmless=re.compile(r".*\.attn\.(masked_)?bias|transformer\.multiple_choice_head\..*"),
    transposed=frozenset(("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")),
    joined={"attn.c_attn": _QKV},
)
"""Its matrices are transposed: its published code multiplies from the other side."""

BERT = Naming(
    prefix="bert.",
    layer="bert.encoder.layer.{}",
    outside={
        "embedding": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "token_types": "bert.embeddings.token_type_embeddings",
        "embedding_norm": "bert.embeddings.LayerNorm",
        "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head": "cls.predictions",
    },
    inside={
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "ffn_norm": "output.LayerNorm",
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

MLP = Naming(
    prefix="",
    layer="layers.{}",
    outside={name: name for name in ("embedding", "mix", "norm")},
    inside={name: name for name in ("ffn_norm", "ffn.up", "ffn.down")},
    copies={},
    harmless=re.compile(r"(?!)"),
)
"""Only Windlass has this family, so the names in its files are ours."""

NAMINGS: Mapping[str, Naming] = {
    "llama": LLAMA, "mistral": LLAMA, "qwen2": LLAMA, "qwen3": LLAMA, "gemma": LLAMA, "smollm3": LLAMA,
    "stablelm": LLAMA, "granite": LLAMA, "gemma2": GEMMA2, "gemma3": GEMMA2, "olmo2": OLMO2,
    "mixtral": MIXTRAL, "qwen2_moe": QWEN_MOE, "qwen3_moe": QWEN_MOE, "olmoe": QWEN_MOE, "phi": PHI,
    "phi3": PHI3, "starcoder2": STARCODER2, "gpt_oss": GPT_OSS, "gpt_neox": GPT_NEOX, "falcon": FALCON,
    "gpt2": GPT2, "bert": BERT, "mlp": MLP,
}  # fmt: skip
