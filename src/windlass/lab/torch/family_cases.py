"""Tiny random models of every decoder family, as transformers builds them.

A case is the configuration of one model: the family's own features on, sizes odd enough that heads, windows,
groups and experts cannot be confused. Contexts exceed windows and the original context of stretched rotary
positions, so that both are in effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SIZES: Mapping[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "router_aux_loss_coef": 0.0,
}
_GPT2: Mapping[str, Any] = {
    "vocab_size": 99, "n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 64, "n_inner": 80,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 40, "num_experts": 5}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
}  # fmt: skip


@dataclass(frozen=True)
class FamilyCase:
    """One configuration: a class of transformers, and its arguments."""

    name: str
    config: str
    fields: Mapping[str, Any]
    sizes: Mapping[str, Any] = field(default_factory=lambda: _SIZES)

    @property
    def arguments(self) -> dict[str, Any]:
        return {**self.sizes, **self.fields}


CASES: tuple[FamilyCase, ...] = (
    FamilyCase("llama", "LlamaConfig", {}),
    FamilyCase("llama, biases and wide heads", "LlamaConfig", {
        "attention_bias": True, "mlp_bias": True, "head_dim": 16, "tie_word_embeddings": True,
    }),
    FamilyCase("llama, llama3 positions", "LlamaConfig", {"rope_parameters": _LLAMA3}),
    FamilyCase("llama, linear positions", "LlamaConfig", {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    }),
    FamilyCase("llama, dynamic positions", "LlamaConfig", {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    }),
    FamilyCase("llama, yarn positions", "LlamaConfig", {"rope_parameters": _YARN}),
    FamilyCase("mistral", "MistralConfig", {"sliding_window": 7}),
    FamilyCase("mixtral", "MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    FamilyCase("qwen2", "Qwen2Config", {}),
    FamilyCase("qwen2, window", "Qwen2Config", {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2,
    }),
    FamilyCase("qwen2_moe", "Qwen2MoeConfig", {
        **_EXPERTS, "shared_expert_intermediate_size": 56, "mlp_only_layers": [1], "norm_topk_prob": False,
    }),
    FamilyCase("qwen3", "Qwen3Config", {"head_dim": 16}),
    FamilyCase("qwen3_moe", "Qwen3MoeConfig", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    FamilyCase("gemma", "GemmaConfig", {"head_dim": 16}),
    FamilyCase("gemma2", "Gemma2Config", {
        "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 30.0,
    }),
    FamilyCase("gemma3", "Gemma3TextConfig", {
        "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }),
    FamilyCase("phi", "PhiConfig", {"partial_rotary_factor": 0.5}),
    FamilyCase("phi3", "Phi3Config", {"sliding_window": 9}),
    FamilyCase("phi3, long positions", "Phi3Config", {
        "rope_parameters": _LONG, "original_max_position_embeddings": 16,
    }),
    FamilyCase("phi4 mini", "Phi3Config", {
        "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16, "tie_word_embeddings": True,
        "rope_parameters": {**_LONG, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 2.5],
                            "partial_rotary_factor": 0.5},
    }),
    FamilyCase("olmo2", "Olmo2Config", {}),
    FamilyCase("olmoe", "OlmoeConfig", {"num_experts_per_tok": 2, "num_experts": 5, "norm_topk_prob": False}),
    FamilyCase("smollm3", "SmolLM3Config", {"no_rope_layers": [1, 0, 1, 1]}),
    FamilyCase("stablelm", "StableLmConfig", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    FamilyCase("stablelm, parallel", "StableLmConfig", {
        "use_parallel_residual": True, "partial_rotary_factor": 0.5,
    }),
    FamilyCase("granite", "GraniteConfig", {
        "embedding_multiplier": 6.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
    }),
    FamilyCase("starcoder2", "Starcoder2Config", {"sliding_window": 9}),
    FamilyCase("gpt2", "GPT2Config", {}, _GPT2),
    FamilyCase("gpt_neox", "GPTNeoXConfig", {"rotary_pct": 0.5}),
    FamilyCase("gpt_neox, sequential", "GPTNeoXConfig", {"rotary_pct": 0.5, "use_parallel_residual": False}),
    FamilyCase("falcon 7b", "FalconConfig", {"multi_query": True, "ffn_hidden_size": 80}),
    FamilyCase("falcon 40b", "FalconConfig", {
        "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 80,
    }),
    FamilyCase("falcon, sequential", "FalconConfig", {
        "multi_query": False, "parallel_attn": False, "bias": True, "ffn_hidden_size": 80,
    }),
    FamilyCase("gpt_oss", "GptOssConfig", {
        "head_dim": 12, "sliding_window": 6, "num_local_experts": 5, "num_experts_per_tok": 2,
        "rope_parameters": {**_YARN, "truncate": False},
    }),
)  # fmt: skip
