"""llama.cpp through its C interface: one context with a sequence for each request in flight.

Every call of llama_decode carries the next token of all running sequences and the prompts of those that
just came in, which is what its own server does, without HTTP. float32 is an F32 file, int8 is Q8_0. What was
quicker here is set: plain instead of flash attention, large micro-batches, keys apart for each sequence.
"""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from conversation import Asked, converse
from safetensors.numpy import load_file

TYPES = {"float32": gguf.GGMLQuantizationType.F32, "int8": gguf.GGMLQuantizationType.Q8_0}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
FILE = "model.gguf"
MAX_BATCH_TOKENS = 2048


def convert(job: dict[str, Any], target: Path) -> None:
    """Write a GGUF file without a vocabulary: token ids go in and out."""
    config = json.loads((Path(job["model"]) / "config.json").read_text())
    writer = gguf.GGUFWriter(target / FILE, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for name, tensor in load_file(Path(job["model"]) / "model.safetensors").items():
        _add(writer, name, _paired(name, tensor, config), TYPES[job["precision"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, name: str, tensor: np.ndarray, kind: Any) -> None:
    if tensor.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(_renamed(name), tensor)
    else:
        writer.add_tensor(_renamed(name), gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def _renamed(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{LAYER_NAMES[rest]}.weight"


def _paired(name: str, tensor: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Put the two halves of each head's queries and keys side by side: llama.cpp turns neighbours."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = heads.get(name.split(".")[-2], 0)
    if not count:
        return tensor
    halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, tensor.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))


class LlamaCpp:
    """A context, and a batch that is filled again for every step."""

    def __init__(self, job: dict[str, Any], model: Path) -> None:
        self.version = llama_cpp.__version__
        self.setting = "C interface, plain attention, a stream of keys for each sequence"
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(model / FILE).encode(), llama_cpp.llama_model_default_params()
        )
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._threads = job["threads"]
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH_TOKENS, 0, 1)
        self._context: Any = None
        self._made_for = (0, 0)

    def answer(self, requests: list[Asked], output: int, concurrency: int) -> None:
        longest = max(len(request.prompt) for request in requests) + output
        self._prepare(concurrency, longest)
        waiting = list(reversed(requests))
        running: dict[int, Asked] = {}
        while waiting or running:
            fed = self._admit(waiting, running, concurrency)
            self._step({**running, **fed}, fed)
            running |= fed
            for place in [p for p, request in running.items() if len(request.tokens) >= output]:
                del running[place]
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), place, -1, -1)

    def _prepare(self, sequences: int, longest: int) -> None:
        """Make a context of just this size; one for more sequences would be slower."""
        if self._made_for == (sequences, longest):
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * longest
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = MAX_BATCH_TOKENS
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._made_for = (sequences, longest)

    def _admit(self, waiting: list[Asked], running: dict[int, Asked], concurrency: int) -> dict[int, Asked]:
        """Take in what there is room for, in sequences and in tokens of one batch."""
        room, fed = MAX_BATCH_TOKENS - len(running), {}
        free = [place for place in range(concurrency) if place not in running]
        while waiting and free and len(waiting[-1].prompt) <= room:
            request = waiting.pop()
            request.sent_s = request.sent_s or time.monotonic()
            room -= len(request.prompt)
            fed[free.pop(0)] = request
        for request in waiting[-len(free) :] if free else []:
            request.sent_s = request.sent_s or time.monotonic()  # in flight, but not yet in a batch
        return fed

    def _step(self, rows: dict[int, Asked], fed: dict[int, Asked]) -> None:
        batch, size = self._batch, 0
        for place, request in rows.items():
            tokens = request.prompt if place in fed else request.tokens[-1:]
            start = 0 if place in fed else len(request.prompt) + len(request.tokens) - 1
            for offset, token in enumerate(tokens):
                batch.token[size], batch.pos[size] = token, start + offset
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, place
                batch.logits[size] = offset == len(tokens) - 1
                size += 1
        batch.n_tokens = size
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        address = ctypes.cast(llama_cpp.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, shape=(len(rows), self._vocabulary))
        for request, token in zip(rows.values(), logits.argmax(axis=1).tolist(), strict=True):
            request.came(token)


if __name__ == "__main__":
    converse(LlamaCpp, convert)
