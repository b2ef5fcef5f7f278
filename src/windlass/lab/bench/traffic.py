"""Random requests of all kinds for a soak; the same seed gives the same requests.

The model is tiny and byte-level: a soak looks for leaks and mixed-up answers, which needs no large model, and
a tiny one answers many more requests in the same time.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from windlass.lab.bench.bench_models import write_subject
from windlass.spec.protocol.wire import Generate, Grammar
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(
    vocabulary=320, context=512, layers=4, width=128, heads=4, kv_heads=2, ffn_width=352, tied=True
)
TENANTS = ("red", "green", "blue", "")
BYTES = 256
END = 256
MAX_PROMPT, MAX_OUTPUT, MAX_SHARED = 200, 64, 160
GRAMMARS = (
    Grammar("json"),
    Grammar("choice", json.dumps(["yes", "no", "perhaps"])),
    Grammar("regex", "[a-f]{3,12}-[0-9]{2,8}"),
    Grammar("schema", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})),
)


def write_soak_model(folder: Path) -> Path:
    """Write the model and a tokenizer, which structured output needs."""
    model = write_subject(SHAPE, folder, special_tokens={"eos_token_id": END})
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(model / "tokenizer.json"))
    return model


def draw_requests(seed: int, count: int) -> list[Generate]:
    """Draw requests; many of them share a few prefixes."""
    rng = random.Random(seed)
    shared = [_tokens(rng, rng.randint(16, MAX_SHARED)) for _ in range(4)]
    return [_request(rng, f"{seed}.{number}", shared) for number in range(count)]


def draw_bad(rng: random.Random, number: int) -> Generate:
    """Draw a request that must be rejected."""
    name, tokens = f"bad.{number}", _tokens(rng, 8)
    return rng.choice(
        (
            Generate(name, [], 8),
            Generate(name, [SHAPE.vocabulary + rng.randint(0, 1 << 20)], 8),
            Generate(name, [-1], 8),
            Generate(name, tokens, SHAPE.context * 1000),
            Generate(name, tokens * SHAPE.context, 8),
            Generate(name, tokens, 8, temperature=-1.0),
            Generate(name, tokens, 8, temperature=float("nan")),
            Generate(name, tokens, 8, top_p=7.0),
            Generate(name, tokens, 8, adapter="nobody"),
            Generate(name, tokens, 8, grammar=Grammar("regex", "(unclosed")),
        )
    )


def _request(rng: random.Random, name: str, shared: list[list[int]]) -> Generate:
    start = rng.choice(shared) if rng.random() < 0.4 else []
    greedy = rng.random() < 0.5
    return Generate(
        name,
        start + _tokens(rng, rng.randint(1, MAX_PROMPT)),
        rng.randint(1, MAX_OUTPUT),
        temperature=0.0 if greedy else rng.choice((0.5, 1.0, 1.5)),
        top_k=rng.choice((0, 0, 5, 40)),
        top_p=rng.choice((1.0, 1.0, 0.9)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        presence_penalty=rng.choice((0.0, 0.0, 0.5)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.5)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.2)),
        seed=rng.getrandbits(32),
        logprobs=rng.choice((-1, -1, 0, 3)),
        stop_tokens=rng.choice(([], [END], [END, 7, 11])),
        tenant=rng.choice(TENANTS),
        priority=rng.choice((0, 0, 0, 1)),
        grammar=rng.choice(GRAMMARS) if rng.random() < 0.1 else None,
    )


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(BYTES) for _ in range(count)]
