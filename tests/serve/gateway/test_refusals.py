"""Bad input: one clear refusal each, in one envelope, before the engine hears of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.serve.gateway.bodies import MOST_BODY_BYTES, check, parse
from windlass.serve.gateway.errors import CODES, ApiError
from windlass.serve.gateway.messages import ChatRequest, CompletionRequest, EmbeddingRequest
from windlass.serve.gateway.replies import ErrorBody

JSON = {"content-type": "application/json"}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "dog"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "dog"}]}
EMBEDDING: dict[str, Any] = {"model": "tiny", "input": "dog"}

BAD_BODIES = [
    (b"", "byte 0"),
    (b'{"model": "tiny", "prompt": ', "byte 28"),
    (b'{"model": "tiny",, }', "byte 17"),
    (b"[]", "must be a JSON object"),
    (b'"dog"', "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"temperature": NaN}', "byte 16"),
    (b'{"temperature": Infinity}', "byte 16"),
    (b'{"temperature": 1e999}', "too large"),
    (b'{"seed": ' + b"9" * 5000 + b"}", "too large"),
    (b'{"prompt": "\\ud800"}', "surrogate pair at byte 12"),
    (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
    (b"\xef\xbb\xbf{}", "byte 0"),
    (b'{"prompt": "a\x00b"}', "byte 13"),
]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 0}, "invalid_value", "n"),
    ({"n": -1}, "invalid_value", "n"),
    ({"n": 10**9}, "invalid_value", "n"),
    ({"n": True}, "invalid_value", "n"),
    ({"best_of": 5}, "invalid_value", "best_of"),
    ({"temperature": -0.1}, "invalid_value", "temperature"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"temperature": "hot"}, "invalid_value", "temperature"),
    ({"top_p": 0}, "invalid_value", "top_p"),
    ({"top_p": 1.5}, "invalid_value", "top_p"),
    ({"top_k": -2}, "invalid_value", "top_k"),
    ({"min_p": 2}, "invalid_value", "min_p"),
    ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
    ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    ({"priority": 101}, "invalid_value", "priority"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10**12}, "invalid_value", "max_tokens"),
    ({"max_tokens": 1000}, "context_length_exceeded", "max_tokens"),
    ({"min_tokens": 5}, "unsupported_parameter", "min_tokens"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop": ["a"] * 1000}, "invalid_value", "stop"),
    ({"stop": "a" * 1_000_000}, "invalid_value", "stop"),
    ({"stop": [1]}, "invalid_value", "stop"),
    ({"logprobs": 21}, "invalid_value", "logprobs"),
    ({"logprobs": "many"}, "invalid_value", "logprobs"),
    ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "invalid_value", "logit_bias"),
    ({"seed": 2**63}, "invalid_value", "seed"),
    ({"seed": 1.5}, "invalid_value", "seed"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix"),
    ({"prompt_embeds": "gASV"}, "unsupported_parameter", "prompt_embeds"),
    ({"prompt": ""}, "invalid_value", "prompt"),
    ({"prompt": []}, "invalid_value", "prompt"),
    ({"prompt": ["dog", ""]}, "invalid_value", "prompt"),
    ({"prompt": [1, -2]}, "invalid_value", "prompt"),
    ({"prompt": [1.5]}, "invalid_value", "prompt"),
    ({"prompt": [400]}, "invalid_value", "prompt"),
    ({"prompt": [1] * 129}, "context_length_exceeded", "prompt"),
    ({"prompt": {"text": "dog"}}, "invalid_value", "prompt"),
    ({"promt": "dog"}, "unknown_parameter", "promt"),
    ({"__proto__": {}}, "unknown_parameter", "__proto__"),
    ({"model": "other"}, "model_not_found", "model"),
    ({"model": None}, "invalid_value", "model"),
    ({"user": "u" * 1000}, "invalid_value", "user"),
]

BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "dog"}, "invalid_value", "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    ({"tools": []}, "unsupported_parameter", "tools"),
    ({"tool_choice": "auto"}, "unsupported_parameter", "tool_choice"),
    ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
    ({"chat_template": "{{ 1 }}"}, "unsupported_parameter", "chat_template"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "invalid_value", "max_tokens"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    ({"logprobs": 5}, "invalid_value", "logprobs"),
    ({"store": True}, "unsupported_parameter", "store"),
]

BAD_EMBEDDINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"input": ""}, "invalid_value", "input"),
    ({"input": [[]]}, "invalid_value", "input"),
    ({"input": ["a"] * 2049}, "invalid_value", "input"),
    ({"input": [1] * 129}, "context_length_exceeded", "input"),
    ({"dimensions": 3}, "invalid_value", "dimensions"),
    ({"encoding_format": "hex"}, "invalid_value", "encoding_format"),
]


def refused(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a response, having checked that it is the one envelope."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == set(ErrorBody.model_fields)
    assert response.status_code == CODES[error["code"]].status
    assert error["doc_url"] == f"/errors/{error['code']}"
    assert error["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in error["message"]
    assert "0x" not in error["message"]
    return error


def test_every_bad_body_is_refused_with_its_place(http: httpx.Client, engine: Any) -> None:
    for body, told in BAD_BODIES:
        error = refused(http.post("/v1/completions", content=body, headers=JSON))
        assert error["code"] == "invalid_json"
        assert told in error["message"], body[:40]
    assert engine.received == []


@pytest.mark.parametrize(
    ("path", "good", "cases"),
    [
        ("/v1/completions", COMPLETION, BAD_COMPLETIONS),
        ("/v1/chat/completions", CHAT, BAD_CHATS),
        ("/v1/embeddings", EMBEDDING, BAD_EMBEDDINGS),
    ],
)
def test_every_bad_value_is_refused_by_name(
    http: httpx.Client,
    engine: Any,
    path: str,
    good: dict[str, Any],
    cases: list[tuple[dict[str, Any], str, str]],
) -> None:
    for change, code, param in cases:
        error = refused(http.post(path, json=good | change))
        assert (error["code"], error["param"]) == (code, param), (change, error)
    assert engine.received == []


def test_a_misspelt_parameter_is_answered_with_the_nearest_right_one(http: httpx.Client) -> None:
    error = refused(http.post("/v1/completions", json=COMPLETION | {"max_token": 3}))
    assert "did you mean 'max_tokens'?" in error["message"]


def test_a_misspelt_needed_parameter_is_not_called_missing(http: httpx.Client) -> None:
    error = refused(http.post("/v1/completions", json={"model": "tiny", "promt": "dog"}))
    assert "did you mean 'prompt'?" in error["message"]


def test_too_long_for_the_context_says_all_numbers(http: httpx.Client) -> None:
    asked = COMPLETION | {"prompt": [5] * 100, "max_tokens": 29}
    message = refused(http.post("/v1/completions", json=asked))["message"]
    assert all(number in message for number in ("100", "29", "129", "128"))


def test_values_that_ask_for_what_happens_anyway_are_accepted(http: httpx.Client) -> None:
    neutral = {"tools": None, "store": False, "response_format": {"type": "text"}, "service_tier": "auto"}
    assert http.post("/v1/chat/completions", json=CHAT | neutral | {"max_tokens": 2}).status_code == 200
    neutral = {"suffix": None, "best_of": 2, "n": 2, "stop": None, "logit_bias": None}
    assert http.post("/v1/completions", json=COMPLETION | neutral).status_code == 200


def test_a_nul_in_a_prompt_is_a_character_like_others(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json=COMPLETION | {"prompt": "a\x00b", "max_tokens": 3})
    assert answer.json()["choices"][0]["text"] == "a\x00b"


def test_a_body_over_the_limit_is_refused_by_its_length(http: httpx.Client) -> None:
    body = b'{"prompt": "' + b"a" * MOST_BODY_BYTES + b'"}'
    assert refused(http.post("/v1/completions", content=body, headers=JSON))["code"] == "body_too_large"


def test_a_body_of_unknown_length_is_refused_when_it_passes_the_limit(http: httpx.Client) -> None:
    pieces = (b"a" * (1 << 20) for _ in range(9))
    assert refused(http.post("/v1/completions", content=pieces, headers=JSON))["code"] == "body_too_large"


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_that_is_not_called_json_is_refused(http: httpx.Client, kind: str) -> None:
    response = http.post("/v1/completions", content=b"{}", headers={"content-type": kind})
    assert refused(response)["code"] == "unsupported_media_type"


def test_a_type_with_a_charset_is_json_too(http: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/../etc", "/nothing", "/v1/completions/"])
def test_an_unknown_path_is_not_found(http: httpx.Client, path: str) -> None:
    assert refused(http.get(path))["code"] == "not_found"


def test_a_wrong_method_says_which_is_right(http: httpx.Client) -> None:
    response = http.get("/v1/completions")
    assert refused(response)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def test_a_very_long_url_is_refused(http: httpx.Client) -> None:
    assert refused(http.get("/v1/models?" + "a" * 9000))["code"] == "url_too_long"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "foreign_host"),
        ({"host": "127.0.0.1.evil.example:80"}, "foreign_host"),
        ({"host": "[::1"}, "foreign_host"),
        ({"origin": "https://evil.example"}, "foreign_origin"),
        ({"origin": "null"}, "foreign_origin"),
    ],
)
def test_another_sites_page_cannot_use_the_server(
    http: httpx.Client, headers: dict[str, str], code: str
) -> None:
    assert refused(http.post("/v1/completions", json=COMPLETION, headers=headers))["code"] == code


def test_the_own_page_and_localhost_may_use_it(http: httpx.Client) -> None:
    port = urlsplit(str(http.base_url)).port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        headers = {"host": host, "origin": f"http://{host}"}
        assert http.get("/v1/models", headers=headers).status_code == 200


def test_a_length_and_an_encoding_together_are_refused(gateway: Any) -> None:
    port = int(gateway.url.rpartition(":")[2])
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(head.encode())
        assert b" 400 " in line.recv(100)


def test_a_model_without_tokenizer_takes_ids_and_refuses_text(
    tmp_path: Path, engine: Any, start_gateway: Callable[..., Any]
) -> None:
    gateway = start_gateway(model=tmp_path)
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        answer = http.post("/v1/completions", json=COMPLETION | {"prompt": [7, 9], "max_tokens": 2})
        assert answer.json()["choices"][0]["text"] == " 7 9"
        assert refused(http.post("/v1/completions", json=COMPLETION))["code"] == "no_tokenizer"
        assert refused(http.post("/v1/chat/completions", json=CHAT))["code"] == "no_tokenizer"


def test_an_encoder_refuses_to_write_and_embeds(engine: Any, start_gateway: Callable[..., Any]) -> None:
    engine.family = "bert"
    gateway = start_gateway()
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        assert refused(http.post("/v1/completions", json=COMPLETION))["code"] == "wrong_model_kind"
        assert http.post("/v1/embeddings", json=EMBEDDING).status_code == 200


@pytest.mark.parametrize(("code", "status"), [("not_a_number", 500), ("context_exceeded", 400)])
def test_what_the_engine_refuses_reaches_the_client(
    http: httpx.Client, engine: Any, code: str, status: int
) -> None:
    engine.fails = code
    response = http.post("/v1/completions", json=COMPLETION)
    assert response.status_code == status
    assert "scripted to fail" in refused(response)["message"]


def refusal_of(work: Callable[[], object]) -> str | None:
    """Return the code with which something is refused, or None; any other error is a failure."""
    try:
        work()
    except ApiError as error:
        return error.code
    return None


@given(body=st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    assert refusal_of(lambda: parse(body)) in (None, "invalid_json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    model=st.sampled_from([CompletionRequest, ChatRequest, EmbeddingRequest]),
)
def test_any_values_are_accepted_or_refused_with_a_4xx(data: st.DataObject, model: Any) -> None:
    names = st.sampled_from([*model.model_fields, "zzz"])
    body = {"model": "tiny"} | data.draw(st.dictionaries(names, VALUES, max_size=4))
    code = refusal_of(lambda: check(model, body))
    assert code is None or CODES[code].status == 400
