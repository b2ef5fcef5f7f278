"""Answers past their deadline are cancelled, in the engine too."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from windlass.spec.protocol.wire import Cancel, Generate

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "dog", "max_tokens": 9}


def soon(ms: int = 50) -> dict[str, str]:
    return {"x-deadline-ms": str(ms)}


def test_a_late_answer_is_given_up_in_the_engine(http: httpx.Client, engine: Any) -> None:
    engine.held = {3}
    response = http.post("/v1/completions", json=ASKED, headers=soon())
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "deadline_exceeded"
    engine.wait_for(lambda received: any(isinstance(each, Cancel) for each in received))


def test_a_late_stream_ends_with_an_error_after_what_it_has_shown(http: httpx.Client, engine: Any) -> None:
    engine.held = {3}
    response = http.post("/v1/completions", json=ASKED | {"stream": True}, headers=soon(300))
    events = response.text.strip().split("\n\n")
    assert response.status_code == 200
    assert len(events) == 4
    assert events[-1].startswith("event: error\n")
    assert json.loads(events[-1].partition("data: ")[2])["error"]["code"] == "deadline_exceeded"
    engine.wait_for(lambda received: any(isinstance(each, Cancel) for each in received))


def test_an_answer_in_time_is_as_without_a_deadline(http: httpx.Client) -> None:
    plain = http.post("/v1/completions", json=ASKED).json()["choices"]
    assert http.post("/v1/completions", json=ASKED, headers=soon(60_000)).json()["choices"] == plain


@pytest.mark.parametrize("headers", [{}, {"x-deadline-ms": "60000"}])
def test_the_servers_own_deadline_is_the_longest(
    start_gateway: Any, engine: Any, headers: dict[str, str]
) -> None:
    gateway = start_gateway()
    gateway.service.deadline_s = 0.05
    gateway.wait_until("/readyz", 200)
    engine.held = {3}
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        assert http.post("/v1/completions", json=ASKED, headers=headers).status_code == 408


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "86400001", "9" * 30, "١٢"])
def test_a_deadline_that_is_none_is_refused(http: httpx.Client, engine: Any, value: str) -> None:
    response = http.post("/v1/completions", json=ASKED, headers={"x-deadline-ms": value.encode()})
    assert response.json()["error"]["code"] == "invalid_header"
    assert engine.of(Generate) == []


def test_two_deadlines_are_refused(http: httpx.Client) -> None:
    headers = [("x-deadline-ms", "5"), ("x-deadline-ms", "6")]
    assert http.post("/v1/completions", json=ASKED, headers=headers).status_code == 400
