"""The whole engine with grammars: forms are kept, neighbours are not touched, another engine goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from tokenizers import Tokenizer

from windlass.corpus.train_tokenizer import train_bpe
from windlass.models.build import build
from windlass.models.huggingface import save_model
from windlass.serve.engine.load import LoadOptions, load_engine
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.protocol.wire import Failed, Generate, Grammar, Tokens
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=420, context=256, layers=1, width=32, heads=2, kv_heads=1, ffn_width=48)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA_GRAMMAR = Grammar("schema", json.dumps(SCHEMA))

Drain = Callable[[Engine], dict[str, list[Answer]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("structured")
    tokenizer = train_bpe(['{"name": "fox", "age": 12, "tags": ["a"]} ' * 4, "naïve 机器 " * 4] * 5, 400)
    save_model(build(SHAPE, seed=5), path, special_tokens={"eos_token_id": tokenizer.end_id})
    tokenizer.inner.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def structured(folder: Path) -> Iterator[Engine]:
    engine = load_engine(folder, LoadOptions(settings=EngineSettings(slots=8, drafts=False), threads=1))
    assert isinstance(engine, Engine)
    assert engine._grammars is not None
    yield engine
    engine._grammars.close()


def ask(id_: str, grammar: Grammar | None, **changes: Any) -> Generate:
    plain = Generate(id_, [7, 8, 9], 200, seed=len(id_), stop_tokens=[0], grammar=grammar)
    return msgspec.structs.replace(plain, **changes)


def written(said: list[Answer]) -> list[int]:
    return [token for message in said if isinstance(message, Tokens) for token in message.tokens]


def finish(said: list[Answer]) -> str | None:
    last = said[-1]
    return last.finish if isinstance(last, Tokens) else None


def test_answers_of_all_forms_keep_to_them_in_one_batch(
    structured: Engine, tokenizer: Tokenizer, drain: Drain
) -> None:
    forms = {
        "schema": SCHEMA_GRAMMAR,
        "regex": Grammar("regex", "[a-c]{3}-[0-9]{2}"),
        "choice": Grammar("choice", '["yes", "no", "maybe"]'),
        "free": None,
    }
    for name, grammar in forms.items():
        structured.add("me", ask(name, grammar))
    said = drain(structured)
    texts = {name: str(tokenizer.decode(written(said[name]))) for name in forms}
    assert finish(said["schema"]) == "stop"
    jsonschema.validate(json.loads(texts["schema"]), SCHEMA)
    assert texts["choice"] in ("yes", "no", "maybe")
    assert len(texts["regex"]) == 6


def test_a_grammar_does_not_change_its_neighbours(structured: Engine, drain: Drain) -> None:
    free = ask("free", None, max_tokens=40)
    structured.add("me", free)
    alone = written(drain(structured)["free"])
    structured.add("me", free)
    structured.add("me", ask("form", SCHEMA_GRAMMAR))
    structured.add("me", ask("bad", Grammar("regex", "(")))
    said = drain(structured)
    assert written(said["free"]) == alone
    assert said["bad"] == [Failed("bad", "bad_grammar", "unclosed group")]


def test_another_engine_continues_in_the_middle_of_a_grammar(structured: Engine, drain: Drain) -> None:
    whole = ask("form", SCHEMA_GRAMMAR)
    structured.add("me", whole)
    tokens = written(drain(structured)["form"])
    for sent in (1, len(tokens) // 2, len(tokens) - 1):
        rest = msgspec.structs.replace(
            whole,
            tokens=[*whole.tokens, *tokens[:sent]],
            resumed_tokens=sent,
            max_tokens=whole.max_tokens - sent,
        )
        structured.add("me", rest)
        assert written(drain(structured)["form"]) == tokens[sent:]


def test_an_answer_cut_by_length_says_so(structured: Engine, drain: Drain) -> None:
    structured.add("me", ask("short", SCHEMA_GRAMMAR, max_tokens=3))
    said = drain(structured)["short"]
    assert len(written(said)) == 3
    assert finish(said) == "length"


def test_greedy_answers_keep_to_the_form_too(structured: Engine, tokenizer: Tokenizer, drain: Drain) -> None:
    structured.add("me", ask("greedy", Grammar("choice", '["one", "two"]'), temperature=0.0))
    assert tokenizer.decode(written(drain(structured)["greedy"])) in ("one", "two")
