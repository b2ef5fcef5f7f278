"""Bad input: one clear error each, in one envelope, before the engine gets the request."""

from __future__ import annotations

import json
import socket
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.http.error_reply import ErrorBody
from windlass.http.errors import CODES, ApiError
from windlass.http.json_body import MAX_BODY_BYTES, parse
from windlass.serve.gateway.schemas.request_body import check
from windlass.serve.gateway.schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from windlass.spec.protocol.wire import Generate

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "dog"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "dog"}]}
EMBEDDING: dict[str, Any] = {"model": "tiny", "input": "dog"}

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {}}}

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
    ({"prompt": ["a"] * 65, "n": 2}, "invalid_value", "prompt"),
    ({"best_of": 5}, "invalid_value", "best_of"),
    ({"best_of": 1, "n": 2}, "invalid_value", "best_of"),
    ({"best_of": 10**9}, "invalid_value", "best_of"),
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
    ({"min_tokens": 5, "max_tokens": 3}, "unsupported_parameter", "min_tokens"),
    ({"bad_words": []}, "unsupported_parameter", "bad_words"),
    ({"repetition_penalty": 2.5}, "invalid_value", "repetition_penalty"),
    ({"length_penalty": 1}, "unsupported_parameter", "length_penalty"),
    ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ({"ignore_eos": True}, "unsupported_parameter", "ignore_eos"),
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
    ({"prompt": [[1, 2], "dog"]}, "invalid_value", "prompt"),
    ({"prompt": [[1, "2"]]}, "invalid_value", "prompt"),
    ({"prompt": None}, "invalid_value", "prompt"),
    ({"prompt": "a" * 1_000_000}, "context_length_exceeded", "prompt"),
    ({"prompt": "\u200d" * 300_000}, "context_length_exceeded", "prompt"),
    ({"prompt": "\U0001f469\u200d" * 200_000}, "context_length_exceeded", "prompt"),
    ({"prompt_embeds": ["gASVDAAAAAAAAACMCGJ1aWx0aW5z"]}, "unsupported_parameter", "prompt_embeds"),
    ({"guided_choice": []}, "invalid_value", "guided_choice"),
    ({"guided_choice": [""]}, "invalid_value", "guided_choice[0]"),
    ({"guided_choice": ["a"] * 1025}, "invalid_value", "guided_choice"),
    ({"guided_regex": ""}, "invalid_value", "guided_regex"),
    ({"guided_regex": "a" * 4097}, "invalid_value", "guided_regex"),
    ({"guided_json": None, "guided_grammar": 'root ::= "a'}, "unsupported_parameter", "guided_grammar"),
    ({"guided_json": []}, "invalid_value", "guided_json"),
    ({"guided_json": {"enum": ["x" * 65_536]}}, "invalid_value", "guided_json"),
    ({"guided_json": {}, "guided_regex": "a"}, "invalid_value", "guided_json"),
    ({"structured_outputs": {}}, "unsupported_parameter", "structured_outputs"),
    ({"json_schema": {}}, "unsupported_parameter", "json_schema"),
    ({"promt": "dog"}, "unknown_parameter", "promt"),
    ({"__proto__": {}}, "unknown_parameter", "__proto__"),
    ({"__class__": "x"}, "unknown_parameter", "__class__"),
    ({"api_base": "http://169.254.169.254/"}, "unknown_parameter", "api_base"),
    ({"api_key": "x"}, "unknown_parameter", "api_key"),
    ({"lora_path": "/etc/passwd"}, "unknown_parameter", "lora_path"),
    ({"lora_request": {"path": "/etc/passwd"}}, "unknown_parameter", "lora_request"),
    ({"trust_remote_code": True}, "unknown_parameter", "trust_remote_code"),
    ({"model": "other"}, "model_not_found", "model"),
    ({"model": "../../etc/passwd"}, "model_not_found", "model"),
    ({"model": "tiny:/etc/passwd"}, "model_not_found", "model"),
    ({"model": "tiny@99"}, "model_not_found", "model"),
    ({"model": "s3://bucket/model"}, "model_not_found", "model"),
    ({"model": "tiny\r\nx-injected: 1"}, "model_not_found", "model"),
    ({"model": "x" * 257}, "invalid_value", "model"),
    ({"model": ""}, "invalid_value", "model"),
    ({"model": None}, "invalid_value", "model"),
    ({"user": "u" * 1000}, "invalid_value", "user"),
]

BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "dog"}, "invalid_value", "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_value", "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}] * 4097}, "invalid_value", "messages"),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "unsupported_parameter",
        "messages[0].tool_calls",
    ),
    ({"tools": []}, "unsupported_parameter", "tools"),
    ({"tools": [TOOL, TOOL]}, "unsupported_parameter", "tools"),
    ({"tools": [TOOL] * 1000}, "unsupported_parameter", "tools"),
    ({"functions": [TOOL["function"]]}, "unsupported_parameter", "functions"),
    ({"tool_choice": "auto"}, "unsupported_parameter", "tool_choice"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "absent"}}},
        "unsupported_parameter",
        "tool_choice",
    ),
    ({"parallel_tool_calls": True}, "unsupported_parameter", "parallel_tool_calls"),
    ({"modalities": ["audio"]}, "unsupported_parameter", "modalities[0]"),
    ({"audio": {"voice": "x", "format": "wav"}}, "unsupported_parameter", "audio"),
    ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "missing_parameter",
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": "{}"}}},
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    ({"chat_template": "{{ 1 }}"}, "unsupported_parameter", "chat_template"),
    ({"chat_template_kwargs": {"tokenize": True}}, "unsupported_parameter", "chat_template_kwargs"),
    ({"top_logprobs": 21, "logprobs": True}, "invalid_value", "top_logprobs"),
    ({"n": 0}, "invalid_value", "n"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"max_completion_tokens": 1000}, "context_length_exceeded", "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "invalid_value", "max_tokens"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    ({"logprobs": 5}, "invalid_value", "logprobs"),
    ({"store": True}, "unsupported_parameter", "store"),
]

MEDIA: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": url}}
    for url in (
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:22/",
        "http://10.0.0.1/x.png",
        "http://a\\@b/",
        "https://example.com/redirects-to-private.png",
        "file:///etc/passwd",
        "data:image/png;base64,not-base64",
        "data:image/png;base64," + "A" * 100_000,
    )
]
MEDIA += [
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "http://localhost/x.mp4", "fps": 10**9}},
    {"type": "file", "file": {"file_id": "../../etc/passwd"}},
    {"type": "prompt_embeds", "prompt_embeds": "gASV"},
]
"""Nothing is fetched or decoded: a part of a message that is not text is refused by its type."""

BAD_EMBEDDINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"input": ""}, "invalid_value", "input"),
    ({"input": [[]]}, "invalid_value", "input"),
    ({"input": ["a"] * 2049}, "invalid_value", "input"),
    ({"input": [1] * 129}, "context_length_exceeded", "input"),
    ({"dimensions": 3}, "invalid_value", "dimensions"),
    ({"encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ({"input": [400]}, "invalid_value", "input"),
    ({"input": None}, "invalid_value", "input"),
    (
        {"input": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
        "invalid_value",
        "input",
    ),
    ({"stream": True}, "unknown_parameter", "stream"),
]


def refused(response: httpx.Response) -> dict[str, Any]:
    """Check that a response has the error envelope; return the error."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == set(ErrorBody.model_fields)
    assert response.status_code == CODES[error["code"]].status
    assert error["doc_url"] == f"/errors/{error['code']}"
    assert error["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in error["message"]
    assert "0x" not in error["message"]
    return error


def test_every_bad_body_is_refused_with_its_place(http: httpx.Client, engine: Any) -> None:
    for body, text in BAD_BODIES:
        error = refused(http.post("/v1/completions", content=body, headers=JSON))
        assert error["code"] == "invalid_json"
        assert text in error["message"], body[:40]
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


def test_media_are_refused_before_anything_is_fetched(http: httpx.Client, engine: Any) -> None:
    for part in MEDIA:
        for content in ([part], [{"type": "text", "text": "what is this?"}, part]):
            body = CHAT | {"messages": [{"role": "user", "content": content}]}
            error = refused(http.post("/v1/chat/completions", json=body))
            assert error["code"] == "invalid_value"
            assert error["param"] == f"messages[0].content[{len(content) - 1}].type"
    assert engine.received == []


def test_an_answer_in_progress_is_not_affected_by_refusals(http: httpx.Client, engine: Any) -> None:
    engine.pause_s = 0.01
    whole = http.post("/v1/completions", json=COMPLETION | {"max_tokens": 60}).json()["choices"][0]["text"]
    body = COMPLETION | {"max_tokens": 60, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        for change, *_ in BAD_COMPLETIONS[:20]:
            assert http.post("/v1/completions", json=COMPLETION | change).status_code in (400, 404)
        frames = [first, *lines]
    events = [line.removeprefix("data: ") for line in frames if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(data)["choices"][0]["text"] for data in events[:-1]) == whole
    assert len(engine.of(Generate)) == 2


def test_refusals_say_nothing_that_moves_the_cursor(http: httpx.Client) -> None:
    for name in ("a\r\nSet-Cookie: x", "\u202egnp.exe", "\x1b[2J", "\u2028", "\x00"):
        error = refused(http.post("/v1/completions", json=COMPLETION | {name: 1, "model": name}))
        text = error["message"] + (error["param"] or "")
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl") for char in text)


def test_a_misspelt_parameter_is_answered_with_the_nearest_right_one(http: httpx.Client) -> None:
    error = refused(http.post("/v1/completions", json=COMPLETION | {"max_token": 3}))
    assert "did you mean 'max_tokens'?" in error["message"]


def test_a_misspelt_needed_parameter_is_not_called_missing(http: httpx.Client) -> None:
    error = refused(http.post("/v1/completions", json={"model": "tiny", "promt": "dog"}))
    assert "did you mean 'prompt'?" in error["message"]


def test_too_long_for_the_context_says_all_numbers(http: httpx.Client) -> None:
    body = COMPLETION | {"prompt": [5] * 100, "max_tokens": 29}
    message = refused(http.post("/v1/completions", json=body))["message"]
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
    body = b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}'
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
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        line.sendall(head.encode())
        assert b" 400 " in line.recv(100)


def test_a_model_without_tokenizer_takes_ids_and_refuses_text(
    tmp_path: Path, engine: Any, start_gateway: Callable[..., Any]
) -> None:
    gateway = start_gateway(model=tmp_path)
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        answer = http.post("/v1/completions", json=COMPLETION | {"prompt": [7, 9], "max_tokens": 2})
        assert answer.json()["choices"][0]["text"] == " 7 9"
        assert refused(http.post("/v1/completions", json=COMPLETION))["code"] == "no_tokenizer"
        assert refused(http.post("/v1/chat/completions", json=CHAT))["code"] == "no_tokenizer"


def test_an_encoder_refuses_to_write_and_embeds(engine: Any, start_gateway: Callable[..., Any]) -> None:
    engine.family = "bert"
    gateway = start_gateway()
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        assert refused(http.post("/v1/completions", json=COMPLETION))["code"] == "wrong_model_kind"
        assert http.post("/v1/embeddings", json=EMBEDDING).status_code == 200


@pytest.mark.parametrize(("code", "status"), [("not_a_number", 500), ("context_exceeded", 400)])
def test_what_the_engine_refuses_reaches_the_client(
    http: httpx.Client, engine: Any, code: str, status: int
) -> None:
    engine.fails = code
    response = http.post("/v1/completions", json=COMPLETION)
    assert response.status_code == status, response.text
    assert "scripted to fail" in refused(response)["message"]


def refusal_of(work: Callable[[], object]) -> str | None:
    """Return the error code of a refused call, or None; any other exception fails the test."""
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
