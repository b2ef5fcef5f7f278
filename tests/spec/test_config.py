"""config.json in both directions; what we cannot honour is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.config import config_from_shape, shape_from_config, special_tokens_of
from windlass.spec.errors import BadInput
from windlass.spec.shape import BertShape, DecoderShape, Network, RopeScaling

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768,
    "n_layer": 12, "n_head": 12, "n_positions": 1024, "activation_function": "gelu_new",
}  # fmt: skip
BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 30522, "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "max_position_embeddings": 512, "hidden_act": "gelu",
}  # fmt: skip

heads = st.integers(1, 8)
shapes = st.one_of(
    st.builds(
        lambda kv, groups, head, **rest: DecoderShape(
            heads=kv * groups, kv_heads=kv, width=kv * groups * 2 * head, **rest
        ),
        kv=heads, groups=heads, head=heads, vocabulary=st.integers(1, 999), context=st.integers(1, 999),
        layers=heads, ffn_width=heads, tied=st.booleans(), rope_theta=st.sampled_from([1e4, 5e5]),
        rope_scaling=st.none() | st.builds(RopeScaling, factor=st.sampled_from([2.0, 32.0])),
        explicit_head_width=st.sampled_from([None, 1026]),
    ),
    st.builds(lambda h, w, **rest: DecoderShape(family="gpt2", heads=h, width=h * w, **rest),
              h=heads, w=heads, vocabulary=heads, context=heads, layers=heads, ffn_width=heads),
    st.builds(lambda h, w, **rest: BertShape(heads=h, width=h * w, **rest), h=heads, w=heads,
              vocabulary=heads, context=heads, layers=heads, ffn_width=heads, token_types=heads),
)  # fmt: skip


@given(shapes)
def test_a_written_shape_is_read_back(shape: Network) -> None:
    assert shape_from_config(config_from_shape(shape), "config.json") == shape


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        {"rope_parameters": LLAMA3, "rope_theta": 500000.0},
    ],
    ids=["old", "present", "mixed"],
)
def test_llama_31_is_read_from_old_and_present_files(rope: dict[str, Any]) -> None:
    shape = shape_from_config(LLAMA | rope, "config.json")
    assert shape.parameters == 8_030_261_248
    assert isinstance(shape, DecoderShape)
    assert (shape.rope_theta, shape.rope_scaling) == (500000.0, RopeScaling())


def test_what_a_gpt2_file_leaves_out_follows_from_the_width() -> None:
    shape = shape_from_config(GPT2, "config.json")
    assert (shape.ffn_width, shape.parameters) == (3072, 124_439_808)


def test_a_bert_file_is_read() -> None:
    assert shape_from_config(BERT, "config.json").parameters == 109_514_298


@pytest.mark.parametrize(
    ("config", "change", "message", "hint"),
    [
        (LLAMA, {"model_type": "mamba"}, "model_type = 'mamba'", "llama, mistral"),
        (LLAMA, {"architectures": ["LlamaForPretending"]}, "LlamaForPretending", "LlamaForCausalLM"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act = 'gelu'", "silu"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window = 4096", "null"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config", "null"),
        (LLAMA, {"rope_scaling": {"type": "spiral", "factor": 4.0}}, "rope_type = 'spiral'", "llama3"),
        (LLAMA, {"rope_parameters": {"rope_type": "proportional"}}, "rope_type = 'proportional'", "yarn"),
        (LLAMA, {"model_type": "qwen3", "layer_types": ["linear_attention"], "use_sliding_window": True,
                 "sliding_window": 8, "architectures": None},
         "layer_types = 'linear_attention'", "full_attention"),
        (LLAMA, {"model_type": "olmoe", "clip_qkv": 8.0, "num_experts_per_tok": 1, "num_experts": 2,
                 "architectures": None}, "clip_qkv = 8.0", "null"),
        (LLAMA, {"model_type": "falcon", "alibi": True, "architectures": None}, "alibi = True", "False"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5", "1.0"),
        (GPT2, {"activation_function": "relu"}, "activation_function = 'relu'", "gelu_new"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True", "False"),
        (GPT2, {"tie_word_embeddings": False}, "tie_word_embeddings = False", "True"),
        (BERT, {"hidden_act": "relu"}, "hidden_act = 'relu'", "gelu"),
        (BERT, {"position_embedding_type": "relative_key"}, "position_embedding_type", "absolute"),
        (BERT, {"is_decoder": True}, "is_decoder = True", "False"),
    ],
)  # fmt: skip
def test_what_we_cannot_compute_is_refused_by_name(
    config: dict[str, Any], change: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(BadInput) as caught:
        shape_from_config(config | change, "somewhere/config.json")
    assert message in caught.value.message
    assert caught.value.message.startswith("somewhere/config.json: ")
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "4096"}, "'hidden_size' is '4096', not a whole number"),
        ({"hidden_size": True}, "'hidden_size' is True, not a whole number"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_attention_heads": 7}, "width 4096 is not a multiple of heads 7"),
        ({"num_key_value_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
        ({"rope_theta": "big"}, "'rope_theta' is 'big'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "lacks 'factor'"),
        ({"rope_scaling": [1]}, "not a table"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "factor: Input should be greater than or equal to 1"),
        ({"rms_norm_eps": "small"}, "'rms_norm_eps' is 'small', not a number"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        shape_from_config(LLAMA | change, "config.json")
    assert message in caught.value.message


def test_special_tokens_are_passed_on_and_unknown_ones_refused() -> None:
    shape = DecoderShape(family="gpt2", vocabulary=9, context=9, layers=1, width=4, heads=2, ffn_width=8)
    config = config_from_shape(shape, special_tokens={"eos_token_id": [3, 4]})
    assert special_tokens_of(config) == {"bos_token_id": None, "eos_token_id": [3, 4], "pad_token_id": None}
    with pytest.raises(BadInput, match="did you mean 'eos_token_id'"):
        config_from_shape(shape, special_tokens={"eos_token": 3})
