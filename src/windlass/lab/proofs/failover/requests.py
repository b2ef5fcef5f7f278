"""The clients' requests: every kind of generation that must be resumed exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windlass.lab.bench.bench_models import write_hidden, write_subject
from windlass.lab.bench.gateway_model import VOCABULARY, write_words
from windlass.spec.shape import DecoderShape, HmmShape

MODEL = "steady"
SHAPE = DecoderShape(
    vocabulary=VOCABULARY, context=1024, layers=4, width=192, heads=4, kv_heads=2, ffn_width=512, tied=True
)
HIDDEN = HmmShape(vocabulary=VOCABULARY, context=1024, states=96)
ANSWERING = ("llama", "hmm")
"""One with a KV cache in its blocks, the other with recurrent states."""
TOKENS = 480
WHOLE = "whole text"
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 7}
STEADY = {"temperature": 0.0}
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 24}},
    "required": ["names"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class StreamRequest:
    """One request, with a unique name."""

    name: str
    path: str
    body: dict[str, Any]

    @property
    def encoded(self) -> bytes:
        return json.dumps({"model": MODEL, "max_tokens": TOKENS, "stream": True, **self.body}).encode()

    @property
    def streams(self) -> bool:
        return self.name != WHOLE

    def stopping_at(self, text: str) -> StreamRequest:
        """Return the same request with a stop string."""
        return replace(self, name=f"{self.name}, stop string", body={**self.body, "stop": [text]})


def write_model(folder: Path, family: str = "llama") -> Path:
    """Write a small model with random weights from a seed, and a tokenizer."""
    words = write_words(folder / "words")
    model = folder / MODEL
    write_hidden(HIDDEN, model) if family == "hmm" else write_subject(SHAPE, model)
    (model / "tokenizer.json").write_bytes((words / "tokenizer.json").read_bytes())
    return model


def asks() -> list[StreamRequest]:
    """Return the requests; answers end by their length, unless a grammar ends them."""
    said = [{"role": "user", "content": "Tell me of windlasses and of the sea."}]
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    scored = {"logprobs": 2, "echo": True}
    usage = {"stream_options": {"include_usage": True}}
    return [
        StreamRequest("greedy text", TEXT, {"prompt": "The anchor", **STEADY, **usage}),
        StreamRequest("sampled text", TEXT, {"prompt": "def load(self", **SAMPLED}),
        StreamRequest("sampled text with penalties", TEXT, {"prompt": "A rope", **SAMPLED, **penalties}),
        StreamRequest("scored text with its prompt", TEXT, {"prompt": "The pawl", **SAMPLED, **scored}),
        StreamRequest(
            "two sampled texts", TEXT, {"prompt": "Why", **SAMPLED, "n": 2, "max_tokens": TOKENS // 2}
        ),
        StreamRequest("greedy chat", CHAT, {"messages": said, **STEADY}),
        StreamRequest(
            "scored chat", CHAT, {"messages": said, **SAMPLED, "logprobs": True, "top_logprobs": 3}
        ),
        StreamRequest("chat in a form", CHAT, {"messages": said, **SAMPLED, "guided_json": SCHEMA}),
        StreamRequest(
            "text in a form", TEXT, {"prompt": "Words:", **SAMPLED, "guided_regex": "([a-z]{2,9} ){90}"}
        ),
        StreamRequest(WHOLE, TEXT, {"prompt": "The crew", **SAMPLED, "stream": False}),
    ]
