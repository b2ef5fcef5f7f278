"""What errors propose: the allowed values, and a whole body that would be accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.http.errors import ApiError, envelope
from windlass.serve.gateway.schemas.repair import with_correction
from windlass.serve.gateway.schemas.request_body import check
from windlass.serve.gateway.schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest

BODY: dict[str, Any] = {"model": "tiny", "prompt": "dog"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "dog"}]}


def refusal(model: Any, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        check(model, body)
    return caught.value


@pytest.mark.parametrize(
    ("change", "better"),
    [
        ({"temperature": 2.5}, {"temperature": 2.0}),
        ({"temperature": -1}, {"temperature": 0.0}),
        ({"n": 10**9}, {"n": 128}),
        ({"max_tokens": 10**12}, {"max_tokens": 2**31 - 1}),
        ({"max_token": 3}, {"max_tokens": 3}),
        ({"prompt_embeds": "gASV"}, {}),
        ({"suffix": "x"}, {}),
        ({"stream_options": {"include_usage": True}}, {}),
        ({"best_of": 5}, {}),
        ({"response_format": {"type": "json_objekt"}}, {"response_format": {"type": "json_object"}}),
        ({"max_token": 3, "temperatur": 9, "top_p": 7}, {"max_tokens": 3, "temperature": 2.0, "top_p": 1.0}),
    ],
)
def test_a_mistake_that_can_be_taken_out_for_sure_is(change: dict[str, Any], better: dict[str, Any]) -> None:
    assert refusal(CompletionRequest, BODY | change).corrected == BODY | better


@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0},
        {"temperature": "hot"},
        {"prompt": ""},
        {"stop": ["a"] * 9},
        {"seed": 1.5},
        {"model": None},
    ],
)
def test_what_would_be_guessing_is_left_to_the_client(change: dict[str, Any]) -> None:
    assert refusal(CompletionRequest, BODY | change).corrected is None


def test_a_large_body_is_not_sent_back() -> None:
    assert refusal(CompletionRequest, BODY | {"prompt": "dog " * 2000, "n": 0}).corrected is None
    assert refusal(CompletionRequest, BODY | {"prompt": [1] * 2000, "n": 0}).corrected is None


def test_the_body_that_was_sent_stays_as_it_was() -> None:
    sent = BODY | {"max_token": 3}
    refusal(CompletionRequest, sent)
    assert sent == BODY | {"max_token": 3}


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"temperature": 2.5}, {"type": "number", "minimum": 0, "maximum": 2}),
        ({"top_p": 0}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
        ({"n": 0}, {"type": "integer", "minimum": 1, "maximum": 128}),
        ({"messages": []}, {"type": "array", "minItems": 1, "maxItems": 4096}),
        (
            {"messages": [{"role": "cat", "content": "x"}]},
            {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
        ),
    ],
)
def test_what_is_allowed_is_reported_in_the_words_of_the_document(
    change: dict[str, Any], allowed: dict[str, Any]
) -> None:
    assert refusal(ChatRequest, CHAT | change).allowed == allowed


@pytest.mark.parametrize(
    ("param", "path"),
    [
        ("messages[0].content", "$.messages[0].content"),
        ("top_p", "$.top_p"),
        ("a b", '$["a b"]'),
        ('a"]', '$["a\\"]"]'),
    ],
)
def test_a_place_is_reported_as_a_json_path(param: str, path: str) -> None:
    assert envelope(ApiError("invalid_value", "x", param=param), "id")["error"]["path"] == path


def test_a_refusal_after_the_body_was_read_is_corrected_too() -> None:
    names = ApiError("model_not_found", "x", param="model", allowed={"enum": ["tiny@3", "other@1"]})
    assert with_correction(names, BODY | {"model": "tiny@4"}).corrected == BODY | {"model": "tiny@3"}
    error = ApiError("context_length_exceeded", "x", param="max_tokens", allowed={"maximum": 7})
    assert with_correction(error, BODY | {"max_tokens": 9}).corrected == BODY | {"max_tokens": 7}
    assert with_correction(ApiError("invalid_value", "x", param="prompt"), BODY).corrected is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), model=st.sampled_from([CompletionRequest, ChatRequest, EmbeddingRequest]))
def test_a_corrected_body_is_accepted(data: st.DataObject, model: Any) -> None:
    good = BODY | CHAT | {"input": "dog"}
    names = st.sampled_from([*model.model_fields, "max_token", "zzz"])
    change = data.draw(st.dictionaries(names, VALUES, max_size=3))
    body = {key: good[key] for key in good if key in model.model_fields} | change
    try:
        check(model, body)
    except ApiError as error:
        if error.corrected is not None:
            check(model, error.corrected)
