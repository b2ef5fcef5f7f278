"""Structured output: checked by the gateway, sent to the engine, and errors of the engine reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.spec.protocol.wire import Generate, Grammar

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "dog"}], "max_tokens": 2}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "dog", "max_tokens": 2}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}
NAMED = {"name": "pet", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", COMPLETION)])
@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["yes", "no"]}, Grammar("choice", '["yes","no"]')),
    ],
)
def test_the_form_of_the_answer_reaches_the_engine(
    http: httpx.Client,
    engine: Any,
    path: str,
    body: dict[str, Any],
    settings: dict[str, Any],
    sent: Grammar | None,
) -> None:
    assert http.post(f"/v1/{path}", json=body | settings).status_code == 200
    (request,) = engine.of(Generate)
    assert request.grammar == sent


@pytest.mark.parametrize(
    "settings",
    [{"response_format": {"type": "json_schema", "json_schema": NAMED}}, {"guided_json": SCHEMA}],
)
def test_a_schema_keeps_the_order_of_its_properties(
    http: httpx.Client, engine: Any, settings: dict[str, Any]
) -> None:
    assert http.post("/v1/chat/completions", json=CHAT | settings | {"n": 2}).status_code == 200
    first, second = engine.of(Generate)
    assert first.grammar == second.grammar
    assert first.grammar.kind == "schema"
    assert json.dumps(json.loads(first.grammar.text)) == json.dumps(SCHEMA)


@pytest.mark.parametrize(
    ("settings", "code", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "text", "json_schema": NAMED}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "missing_parameter", "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED | {"name": "a b"}}},
         "invalid_value", "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED | {"schema": []}}},
         "invalid_value", "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED | {"shema": {}}}},
         "unknown_parameter", "response_format.json_schema.shema"),
        ({"guided_json": {"description": "x" * 70_000}}, "invalid_value", "guided_json"),
        ({"guided_json": "{}"}, "invalid_value", "guided_json"),
        ({"guided_regex": ""}, "invalid_value", "guided_regex"),
        ({"guided_regex": "a" * 5000}, "invalid_value", "guided_regex"),
        ({"guided_choice": []}, "invalid_value", "guided_choice"),
        ({"guided_choice": [""]}, "invalid_value", "guided_choice[0]"),
        ({"guided_choice": ["a"] * 2000}, "invalid_value", "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "invalid_value", "guided_regex"),
        ({"guided_grammar": "start: A"}, "unsupported_parameter", "guided_grammar"),
    ],
)  # fmt: skip
def test_an_invalid_grammar_is_refused_before_it_reaches_the_engine(
    http: httpx.Client, engine: Any, settings: dict[str, Any], code: str, param: str
) -> None:
    reply = http.post("/v1/chat/completions", json=CHAT | settings)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert engine.of(Generate) == []


def test_a_misspelt_part_of_a_schema_is_answered_with_its_name(http: httpx.Client, engine: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schma": {}}}
    error = http.post("/v1/chat/completions", json=CHAT | {"response_format": form}).json()["error"]
    assert "did you mean 'schema'?" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_cannot_compile_is_the_askers_mistake(
    http: httpx.Client, engine: Any, stream: bool
) -> None:
    engine.fails = "bad_grammar"
    reply = http.post("/v1/chat/completions", json=CHAT | {"guided_regex": "(", "stream": stream})
    assert "invalid_grammar" in reply.text
    assert "scripted to fail" in reply.text
    if not stream:
        assert reply.status_code == 400


def test_a_model_without_tokenizer_has_no_structured_output(
    start_gateway: Any, engine: Any, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    running = start_gateway(model=tmp_path)
    running.wait_until("/readyz", 200)
    with httpx.Client(base_url=running.url, timeout=20) as client:
        body = COMPLETION | {"prompt": [5, 6], "guided_choice": ["a"]}
        reply = client.post("/v1/completions", json=body)
    assert reply.json()["error"]["code"] == "no_tokenizer"


def test_the_document_names_the_forms(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest"):
        assert {"response_format", "guided_json", "guided_regex", "guided_choice"} <= set(
            document[name]["properties"]
        )
    assert "schema" in document["NamedSchema"]["required"]
