"""The architectures of GGUF files: which metadata is which field of config.json, and which tensor is which.

Everything here is data, read in both directions: `hf_config` and `tensor_plan` go from GGUF to the names of
Hugging Face, `export_plan` goes back. An architecture that is not in ARCHITECTURES is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Fields = dict[str, str]

SIZES: Fields = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
}
"""Fields of config.json by the metadata that holds them; GGUF puts the architecture's name before each."""
RMS: Fields = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
LAYER_NORM = "attention.layer_norm_epsilon"
ATTENTION: Fields = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}
QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class Architecture:
    """One architecture of GGUF, and the model type of Hugging Face that computes the same."""

    name: str
    model_type: str
    class_name: str
    fields: Fields
    """Fields of config.json by metadata; those of `optional` may be missing."""
    inside: Fields
    """Tensors of a layer, GGUF's name to Hugging Face's; {} counts tensors that GGUF stacks into one."""
    optional: Fields = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    """Fields of config.json that are the same for every model of the architecture."""
    outside: Fields = field(default_factory=lambda: MODEL)
    layer: str = "model.layers.{}"
    rotary: str = "rope_theta"
    """The field with the base of rotary positions; empty: the architecture has none."""
    permuted: bool = False
    """Whether the rows of query and key alternate between the halves of a head, as GGUF's llama has them."""
    norm_offset: bool = False
    """Whether GGUF stores weights of norms plus one."""
    grouped_qkv: str = ""
    """How the model's own files order the rows of the joined query, key and value: "heads" or "groups"."""
    transposed: tuple[str, ...] = ()
    """Matrices that Hugging Face stores with inputs as rows."""
    always_tied: bool = False
    partial: str = ""
    """The field with the rotated part of a head's width."""
    window_every: int = 0
    """Every how many layers one attends to everything, where the rest have a sliding window."""
    head_width: bool = False
    """Whether the model type has a field `head_dim`."""


LLAMA = Architecture(
    name="llama",
    model_type="llama",
    class_name="LlamaForCausalLM",
    fields=SIZES | RMS,
    inside=ATTENTION | {"ffn_norm": "post_attention_layernorm"} | GATED,
    fixed={"hidden_act": "silu"},
    permuted=True,
    head_width=True,
)
MIXTURE = replace(
    LLAMA,
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    fields=SIZES | RMS | {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"},
    inside=ATTENTION | {"ffn_norm": "post_attention_layernorm"} | MIXTRAL,
    fixed={"hidden_act": "silu", "sliding_window": None},
)
"""Files of the architecture llama that have experts."""
QWEN2 = replace(
    LLAMA, name="qwen2", model_type="qwen2", class_name="Qwen2ForCausalLM", permuted=False, head_width=False,
    fixed={"hidden_act": "silu", "use_sliding_window": False},
)  # fmt: skip
QWEN3 = replace(
    LLAMA, name="qwen3", model_type="qwen3", class_name="Qwen3ForCausalLM", permuted=False,
    inside=LLAMA.inside | HEAD_NORMS,
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
)  # fmt: skip
QWEN3_MOE = replace(
    QWEN3,
    name="qwen3moe",
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    fields=SIZES
    | RMS
    | {
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    inside=ATTENTION | HEAD_NORMS | {"ffn_norm": "post_attention_layernorm"} | QWEN_EXPERTS,
    fixed=QWEN3.fixed | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
_GEMMA: dict[str, Any] = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
GEMMA = replace(
    LLAMA, name="gemma", model_type="gemma", class_name="GemmaForCausalLM", permuted=False, norm_offset=True,
    fixed=_GEMMA, always_tied=True,
)  # fmt: skip
GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    model_type="gemma2",
    class_name="Gemma2ForCausalLM",
    fields=SIZES | RMS | {"sliding_window": "attention.sliding_window"},
    optional={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    inside=ATTENTION
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    | GATED,
    fixed=_GEMMA | {"attention_bias": False},
    window_every=2,
)
GEMMA3 = replace(
    GEMMA2, name="gemma3", model_type="gemma3_text", class_name="Gemma3ForCausalLM",
    inside=GEMMA2.inside | HEAD_NORMS,
    optional={"final_logit_softcapping": "final_logit_softcapping"},
    fixed=GEMMA2.fixed | {"attn_logit_softcapping": None, "rope_local_base_freq": 10000.0},
    window_every=6,
)  # fmt: skip
PHI3 = replace(
    LLAMA,
    name="phi3",
    model_type="phi3",
    class_name="Phi3ForCausalLM",
    inside={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    optional={
        "original_max_position_embeddings": "rope.scaling.original_context_length",
        "sliding_window": "attention.sliding_window",
    },
    fixed={"hidden_act": "silu", "attention_bias": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    permuted=False,
    partial="partial_rotary_factor",
    head_width=False,
)
OLMO2 = replace(
    LLAMA,
    name="olmo2",
    model_type="olmo2",
    class_name="Olmo2ForCausalLM",
    inside={name: theirs for name, theirs in ATTENTION.items() if name != "attn_norm"}
    | HEAD_NORMS
    | {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    | GATED,
    fixed={"hidden_act": "silu", "attention_bias": False},
    permuted=False,
    head_width=False,
)
GRANITE = replace(
    LLAMA, name="granite", model_type="granite", class_name="GraniteForCausalLM", head_width=False,
    optional={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
)  # fmt: skip
SMOLLM3 = replace(
    LLAMA, name="smollm3", model_type="smollm3", class_name="SmolLM3ForCausalLM", head_width=False,
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
           "no_rope_layer_interval": 4},
)  # fmt: skip
STABLELM = replace(
    LLAMA,
    name="stablelm",
    model_type="stablelm",
    class_name="StableLmForCausalLM",
    fields=SIZES | {"layer_norm_eps": LAYER_NORM},
    optional={"use_parallel_residual": "use_parallel_residual"},
    inside=LLAMA.inside
    | {"attn_q_norm": "self_attn.q_layernorm.norms.{}", "attn_k_norm": "self_attn.k_layernorm.norms.{}"},
    permuted=False,
    partial="partial_rotary_factor",
    head_width=False,
)
STARCODER2 = replace(
    LLAMA,
    name="starcoder2",
    model_type="starcoder2",
    class_name="Starcoder2ForCausalLM",
    fields=SIZES | {"norm_epsilon": LAYER_NORM},
    inside=ATTENTION
    | {"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    fixed={"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None},
    permuted=False,
    head_width=False,
)
GPTNEOX = Architecture(
    name="gptneox",
    model_type="gpt_neox",
    class_name="GPTNeoXForCausalLM",
    fields={name: key for name, key in SIZES.items() if name != "num_key_value_heads"}
    | {"layer_norm_eps": LAYER_NORM},
    optional={"use_parallel_residual": "use_parallel_residual"},
    inside={
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    fixed={"hidden_act": "gelu", "attention_bias": True},
    outside={
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    layer="gpt_neox.layers.{}",
    rotary="rotary_emb_base",
    grouped_qkv="heads",
    partial="rotary_pct",
)
FALCON = Architecture(
    name="falcon",
    model_type="falcon",
    class_name="FalconForCausalLM",
    fields={
        "max_position_embeddings": "context_length",
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_kv_heads": "attention.head_count_kv",
        "layer_norm_epsilon": LAYER_NORM,
    },
    inside={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    fixed={"alibi": False, "bias": False, "parallel_attn": True, "activation": "gelu"},
    outside={
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    layer="transformer.h.{}",
    grouped_qkv="groups",
)
FALCON_40B = replace(
    FALCON,
    inside={name: theirs for name, theirs in FALCON.inside.items() if name != "attn_norm"}
    | {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
    fixed=FALCON.fixed | {"new_decoder_architecture": True, "multi_query": False},
)
"""Falcon models with two norms before attention and feed-forward."""
GPT2 = Architecture(
    name="gpt2",
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    fields={
        "n_positions": "context_length",
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_inner": "feed_forward_length",
        "n_head": "attention.head_count",
        "layer_norm_epsilon": LAYER_NORM,
    },
    inside={
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    fixed={"activation_function": "gelu_new"},
    outside={
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    layer="transformer.h.{}",
    rotary="",
    transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    always_tied=True,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each
    for each in (
        LLAMA, QWEN2, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3, PHI3, OLMO2, GRANITE, SMOLLM3, STABLELM,
        STARCODER2, GPTNEOX, FALCON, GPT2,
    )
}  # fmt: skip
"""By the name that GGUF gives them. Mistral is a llama; llamas with experts are MIXTURE."""
