"""CTranslate2: batches of a fixed size, one after the other, which is how it is meant to be used.

Its decoder is filled tensor by tensor, because its own converter wants transformers and a tokenizer. Token
n of the vocabulary is the word "n".
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from conversation import Asked, converse
from safetensors.numpy import load_file

MKL = {"float32": "1", "int8": "0"}
"""Whether to multiply with MKL rather than oneDNN: what was quicker here. By itself the library takes MKL on
Intel's processors alone; it looks at this when it is loaded, so it is loaded late."""


def convert(job: dict[str, Any], target: Path) -> None:
    """Write the model in CTranslate2's format, in float32; weights become int8 when it is loaded."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = json.loads((Path(job["model"]) / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        num_heads_kv=None if kv_heads == heads else kv_heads,
    )
    _fill(spec.decoder, load_file(Path(job["model"]) / "model.safetensors"))
    spec.register_vocabulary([str(token) for token in range(config["vocab_size"])])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize()
    spec.save(str(target))


def _fill(decoder: Any, tensors: dict[str, np.ndarray]) -> None:
    decoder.scale_embeddings = False
    decoder.embeddings.weight = tensors["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = tensors["model.norm.weight"]
    decoder.projection.weight = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    for number, layer in enumerate(decoder.layer):
        own = {name.split(".", 3)[3]: t for name, t in tensors.items() if f".layers.{number}." in name}
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = own["input_layernorm.weight"]
        attention.linear[0].weight = np.concatenate([own[f"self_attn.{p}_proj.weight"] for p in "qkv"])
        attention.linear[1].weight = own["self_attn.o_proj.weight"]
        ffn.layer_norm.gamma = own["post_attention_layernorm.weight"]
        ffn.linear_0.weight = own["mlp.gate_proj.weight"]
        ffn.linear_0_noact.weight = own["mlp.up_proj.weight"]
        ffn.linear_1.weight = own["mlp.down_proj.weight"]


class CTranslate2:
    """A Generator; its callback, called for every token, tells the times."""

    def __init__(self, job: dict[str, Any], model: Path) -> None:
        os.environ["CT2_USE_MKL"] = MKL[job["precision"]]
        import ctranslate2

        self.version = ctranslate2.__version__
        library = "MKL" if MKL[job["precision"]] == "1" else "oneDNN"
        self.setting = f"{job['precision']}, static batches, {library}"
        self._generator = ctranslate2.Generator(
            str(model), device="cpu", compute_type=job["precision"], intra_threads=job["threads"]
        )

    def answer(self, requests: list[Asked], output: int, concurrency: int) -> None:
        for start in range(0, len(requests), concurrency):
            self._batch(requests[start : start + concurrency], output)

    def _batch(self, requests: list[Asked], output: int) -> None:
        now = time.monotonic()
        for request in requests:
            request.sent_s = now

        def came(step: Any) -> bool:
            requests[step.batch_id].came(step.token_id)
            return False

        self._generator.generate_batch(
            [[str(token) for token in request.prompt] for request in requests],
            max_length=output,
            min_length=output,  # no answer ends early
            include_prompt_in_result=False,
            callback=came,
        )


if __name__ == "__main__":
    converse(CTranslate2, convert)
