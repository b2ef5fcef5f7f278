"""The fast path returns the same responses as FastAPI's routing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

ASK = {"model": "tiny", "prompt": "the dog", "max_tokens": 2, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", ASK),
        ("/v1/completions", ASK | {"temperatur": 1}),
        ("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/embeddings", {"model": "tiny", "input": "the dog"}),
    ],
)
def test_a_busy_route_answers_as_it_does_through_the_framework(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    short = start_gateway()
    monkeypatch.setattr("windlass.serve.gateway.app.FAST_PATHS", ())
    long = start_gateway()
    assert _answer(short, path, body) == _answer(long, path, body)


def test_a_busy_path_with_another_method_is_refused_by_the_framework(http: httpx.Client) -> None:
    response = http.get("/v1/completions")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_request_on_a_busy_route_is_counted_under_its_route(http: httpx.Client) -> None:
    http.post("/v1/completions", json=ASK)
    assert 'route="/v1/completions"' in http.get("/metrics").text


def _answer(gateway: Any, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    gateway.wait_until("/readyz", 200)
    response = httpx.post(gateway.url + path, json=body, timeout=60)
    reply = response.json()
    for made_anew in ("id", "created"):
        reply.pop(made_anew, None)
    reply.get("error", {}).pop("request_id", None)
    return response.status_code, reply
