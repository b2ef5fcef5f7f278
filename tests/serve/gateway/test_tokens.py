"""Tokens without the engine: /v1/tokenize, /v1/detokenize, /v1/dry-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.records.state import open_state
from windlass.spec.limits import Limits, ServeLimits
from windlass.spec.protocol.wire import Generate
from windlass.spec.serve import Price
from windlass.store.database import sqlite_url

TALK = [{"role": "user", "content": "the quick dog"}]


def test_a_prompt_has_the_tokens_that_the_engine_is_given(http: httpx.Client, engine: Any) -> None:
    reply = http.post("/v1/tokenize", json={"model": "tiny", "text": "the quick dog"}).json()
    assert engine.received == []
    http.post("/v1/completions", json={"model": "tiny", "prompt": "the quick dog"})
    assert reply["tokens"] == engine.of(Generate)[0].tokens
    assert reply["count"] == len(reply["tokens"])
    assert "".join(reply["texts"]) == "the quick dog"
    assert reply["model"] == "tiny@3"


def test_messages_have_the_tokens_that_the_engine_is_given(http: httpx.Client, engine: Any) -> None:
    reply = http.post("/v1/tokenize", json={"model": "tiny", "messages": TALK}).json()
    http.post("/v1/chat/completions", json={"model": "tiny", "messages": TALK})
    assert reply["tokens"] == engine.of(Generate)[0].tokens


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_text_comes_back_from_its_tokens(http: httpx.Client, text: str) -> None:
    tokens = http.post("/v1/tokenize", json={"model": "tiny", "text": text}).json()["tokens"]
    assert http.post("/v1/detokenize", json={"model": "tiny", "tokens": tokens}).json()["text"] == text


@pytest.mark.parametrize(
    ("path", "change", "code"),
    [
        ("/v1/tokenize", {}, "invalid_value"),
        ("/v1/tokenize", {"text": ""}, "invalid_value"),
        ("/v1/tokenize", {"text": "a", "messages": TALK}, "invalid_value"),
        ("/v1/tokenize", {"messages": []}, "invalid_value"),
        ("/v1/tokenize", {"messages": TALK, "special": True}, "invalid_value"),
        ("/v1/tokenize", {"text": "a" * 1_000_000}, "context_length_exceeded"),
        ("/v1/tokenize", {"prompt": "a"}, "unknown_parameter"),
        ("/v1/tokenize", {"text": "a", "model": "other"}, "model_not_found"),
        ("/v1/detokenize", {}, "missing_parameter"),
        ("/v1/detokenize", {"tokens": [-1]}, "invalid_value"),
        ("/v1/detokenize", {"tokens": [400]}, "invalid_value"),
        ("/v1/detokenize", {"tokens": [1.5]}, "invalid_value"),
        ("/v1/detokenize", {"tokens": "1"}, "invalid_value"),
        ("/v1/dry-run", {}, "unknown_parameter"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    http: httpx.Client, engine: Any, path: str, change: dict[str, Any], code: str
) -> None:
    response = http.post(path, json={"model": "tiny"} | change)
    assert response.json()["error"]["code"] == code
    assert engine.received == []


def dry(http: httpx.Client, route: str, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post("/v1/dry-run", json={"route": route, "body": body})
    assert response.status_code == 200
    reply: dict[str, Any] = response.json()
    return reply


def test_a_dry_run_counts_without_the_engine(http: httpx.Client, engine: Any) -> None:
    body = {"model": "tiny", "prompt": "the quick dog", "max_tokens": 7, "n": 3}
    reply = dry(http, "/v1/completions", body)
    count = http.post("/v1/tokenize", json={"model": "tiny", "text": "the quick dog"}).json()["count"]
    assert reply["fits"]
    assert (reply["prompt_tokens"], reply["max_tokens"], reply["answers"]) == (count, 21, 3)
    assert (reply["model"], reply["context_length"]) == ("tiny@3", 128)
    assert engine.received == []


@pytest.mark.parametrize(
    ("route", "body", "code"),
    [
        (
            "/v1/completions",
            {"model": "tiny", "prompt": [5] * 100, "max_tokens": 29},
            "context_length_exceeded",
        ),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "n": 0}, "invalid_value"),
        ("/v1/chat/completions", {"model": "tiny", "messages": []}, "invalid_value"),
        ("/v1/embeddings", {"model": "tiny", "input": [1] * 129}, "context_length_exceeded"),
        ("/v1/embeddings", {"model": "other", "input": "a"}, "model_not_found"),
    ],
)
def test_a_dry_run_reports_what_the_route_would_refuse(
    http: httpx.Client, route: str, body: dict[str, Any], code: str
) -> None:
    reply, real = dry(http, route, body), http.post(route, json=body).json()["error"]
    assert not reply["fits"]
    assert reply["error"]["code"] == real["code"] == code
    assert reply["error"]["corrected"] == real["corrected"]


def test_a_dry_run_of_messages_and_inputs_counts_them(http: httpx.Client) -> None:
    assert dry(http, "/v1/chat/completions", {"model": "tiny", "messages": TALK})["max_tokens"] > 1
    assert dry(http, "/v1/embeddings", {"model": "tiny", "input": [[1, 2], [3]]})["prompt_tokens"] == 3


def test_a_dry_run_reports_the_price_where_there_is_one(http: httpx.Client, gateway: Any) -> None:
    body = {"model": "tiny", "prompt": [5, 6], "max_tokens": 7}
    assert dry(http, "/v1/completions", body)["cost"] is None
    gateway.service.price = Price(read=0.5, write=2, currency="EUR")
    try:
        reply = dry(http, "/v1/completions", body | {"n": 2})
    finally:
        gateway.service.price = None
    assert reply["cost"] == {"maximum": pytest.approx((2 * 0.5 + 14 * 2) / 1e6), "currency": "EUR"}


def test_a_dry_run_foretells_times_and_what_is_left(start_gateway: Any, tmp_path: Path) -> None:
    gateway = start_gateway()
    state = open_state(sqlite_url(tmp_path / "service.db"))
    limits = ServeLimits(all=Limits(tokens_per_day=1000))
    service = gateway.service
    service.admission = AdmissionController(
        limits, state, service.fleet, service.metrics, holder="test", queue=4
    )
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        reply = dry(http, "/v1/completions", {"model": "tiny", "prompt": [5, 6], "max_tokens": 7})
    assert reply["first_token_s"] > 0
    assert reply["whole_s"] > reply["first_token_s"]
    assert reply["quota"] == [
        {"scope": "all", "kind": "tokens_day", "left": 1000.0, "capacity": 1000.0, "needed": 9.0}
    ]
