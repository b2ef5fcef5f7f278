"""Several models and their adapters behind one gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from windlass.spec.protocol.wire import Embed, Generate, ModelInfo

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


@pytest.fixture
def many(start_gateway: Callable[..., Any], engine: Any) -> Iterator[httpx.Client]:
    engine.stop()
    engine.models = [
        ModelInfo("tiny@3", "llama", 1000, 128, 400, 8),
        ModelInfo("other@1", "llama", 2000, 32, 400, 8),
        ModelInfo("encoder", "bert", 3000, 64, 400, 8),
        ModelInfo("counted", "ngram", 9000, 64, 400, 0),
    ]
    engine.start()
    gateway = start_gateway(adapters=["poet", "clerk"], others=["other@1", "encoder", "counted"])
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as client:
        yield client


def complete(client: httpx.Client, model: str, **more: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"model": model, "prompt": "the fox", "max_tokens": 3} | more)


def test_every_model_is_listed_and_followed_by_its_adapters(many: httpx.Client) -> None:
    listed = many.get("/v1/models").json()["data"]
    assert [(m["id"], m["parent"], m["family"]) for m in listed] == [
        ("tiny@3", None, "llama"),
        ("tiny@3:poet", "tiny@3", "llama"),
        ("tiny@3:clerk", "tiny@3", "llama"),
        ("other@1", None, "llama"),
        ("encoder", None, "bert"),
        ("counted", None, "ngram"),
    ]
    assert many.get("/v1/models/tiny:poet").json()["id"] == "tiny@3:poet"
    assert many.get("/v1/models/other").json()["context_length"] == 32


@pytest.mark.parametrize(
    ("name", "model", "adapter", "expected"),
    [
        ("tiny", "", "", "tiny@3"),
        ("tiny@prod", "", "", "tiny@3"),
        ("other", "other@1", "", "other@1"),
        ("tiny@3:poet", "", "poet", "tiny@3:poet"),
        ("tiny:clerk", "", "clerk", "tiny@3:clerk"),
        ("poet", "", "poet", "tiny@3:poet"),
    ],
)
def test_the_engine_gets_the_model_and_the_adapter(
    many: httpx.Client, engine: Any, name: str, model: str, adapter: str, expected: str
) -> None:
    assert complete(many, name).json()["model"] == expected
    (sent,) = engine.of(Generate)
    assert (sent.model, sent.adapter) == (model, adapter)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tini", "did you mean 'tiny@3'"),
        ("tiny:poat", "'tiny@3' has no adapter 'poat'; did you mean 'poet'?"),
        ("other:poet", "'other@1' has no adapter 'poet'"),
        ("nothing:poet", "is not served here"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_nearest(
    many: httpx.Client, engine: Any, name: str, says: str
) -> None:
    reply = complete(many, name)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert says in reply.json()["error"]["message"]
    assert engine.of(Generate) == []


def test_each_model_has_its_own_limits(many: httpx.Client) -> None:
    assert complete(many, "tiny", max_tokens=60).status_code == 200
    refused = complete(many, "other", max_tokens=60)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert complete(many, "encoder").json()["error"]["code"] == "wrong_model_kind"


def test_embeddings_go_to_the_model_that_was_named(many: httpx.Client, engine: Any) -> None:
    reply = many.post("/v1/embeddings", json={"model": "encoder", "input": ["the fox"], "priority": 3})
    assert reply.json()["model"] == "encoder"
    (sent,) = engine.of(Embed)
    assert (sent.model, sent.priority) == ("encoder", 3)
    refused = many.post("/v1/embeddings", json={"model": "tiny:poet", "input": ["the fox"]})
    assert refused.json()["error"]["code"] == "wrong_model_kind"


def test_a_model_without_vectors_writes_and_does_not_embed(many: httpx.Client, engine: Any) -> None:
    assert complete(many, "counted").status_code == 200
    refused = many.post("/v1/embeddings", json={"model": "counted", "input": ["the fox"]})
    assert refused.json()["error"]["code"] == "wrong_model_kind"
    assert "has no embeddings" in refused.json()["error"]["message"]
    assert engine.of(Embed) == []


def test_priority_and_repetition_penalty_reach_the_engine(many: httpx.Client, engine: Any) -> None:
    complete(many, "tiny", priority=7, repetition_penalty=1.2)
    (sent,) = engine.of(Generate)
    assert (sent.priority, sent.repetition_penalty) == (7, 1.2)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [("model_failed", 500, "engine_failed"), ("unknown_adapter", 404, "model_not_found")],
)
def test_a_model_that_the_engine_cannot_load_is_reported_and_the_others_continue(
    many: httpx.Client, engine: Any, code: str, status: int, expected: str
) -> None:
    engine.fails = code
    refused = complete(many, "other")
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, expected)
    engine.fails = None
    assert complete(many, "tiny").status_code == 200


def test_a_prompt_can_be_scored_without_writing_anything(many: httpx.Client) -> None:
    reply = complete(many, "tiny", max_tokens=0, echo=True, logprobs=0).json()
    (choice,) = reply["choices"]
    assert choice["text"] == "the fox"
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == reply["usage"]["prompt_tokens"]
    assert reply["usage"]["completion_tokens"] == 0
