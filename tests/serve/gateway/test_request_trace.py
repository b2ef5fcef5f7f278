"""What a request leaves behind: ids, response headers, metrics, a line of the access log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.spec.protocol.wire import Generate

ASK = {"model": "tiny", "prompt": "the quick brown fox", "max_tokens": 8}


def figure(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_request_id_is_kept_from_the_header_to_the_engine(http: httpx.Client, engine: Any) -> None:
    answer = http.post("/v1/completions", json=ASK, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    (request,) = engine.of(Generate)
    assert request.id.startswith("mine-1.")


def test_requests_with_one_id_at_a_time_get_their_own_answers(http: httpx.Client, engine: Any) -> None:
    engine.held = {4}
    headers = {"x-request-id": "same"}
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}, headers=headers) as first:
        lines = first.iter_lines()
        next(lines)
        engine.held = None
        second = http.post("/v1/completions", json=ASK | {"prompt": "lazy dog"}, headers=headers)
    assert second.status_code == 200
    ids = [request.id for request in engine.of(Generate)]
    assert len(set(ids)) == len(ids)


def test_an_error_reports_the_id_that_was_sent(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json=ASK | {"temperature": 9}, headers={"x-request-id": "mine-2"})
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"] == "mine-2"


@pytest.mark.parametrize("sent", ["a b", "x" * 65, "<b>", "'"])
def test_an_id_that_is_not_plain_is_replaced(http: httpx.Client, sent: str) -> None:
    assert http.get("/healthz", headers={"x-request-id": sent}).headers["x-request-id"] != sent


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_reports_what_the_gateway_added(http: httpx.Client, stream: bool) -> None:
    answer = http.post("/v1/completions", json=ASK | {"stream": stream})
    assert 0 < float(answer.headers["x-windlass-overhead-ms"]) < 60_000
    assert answer.headers["server-timing"].startswith("prepare;dur=")


def test_the_time_of_a_slow_engine_is_not_the_gateways(http: httpx.Client, engine: Any) -> None:
    engine.pause_s = 0.1
    answer = http.post("/v1/completions", json=ASK)
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert float(timing["engine"]) >= 800
    assert float(answer.headers["x-windlass-overhead-ms"]) < float(timing["engine"])


def test_an_answer_that_no_engine_made_has_no_overhead(http: httpx.Client) -> None:
    assert "x-windlass-overhead-ms" not in http.get("/healthz").headers


def test_errors_are_counted_by_their_code(http: httpx.Client) -> None:
    name = 'windlass_request_errors_total{code="invalid_value"}'
    before = figure(http, name)
    http.post("/v1/completions", json=ASK | {"temperature": 9})
    assert figure(http, name) == before + 1


def test_an_answer_counts_for_every_figure_of_its_model(http: httpx.Client) -> None:
    names = (
        'windlass_time_to_first_token_seconds_count{model="tiny@3"}',
        'windlass_request_queue_time_seconds_count{model="tiny@3"}',
        'windlass_e2e_request_latency_seconds_count{model="tiny@3"}',
        'windlass_request_success_total{finished_reason="length",model="tiny@3"}',
        "windlass_gateway_overhead_seconds_count",
    )
    before = [figure(http, name) for name in names]
    http.post("/v1/completions", json=ASK)
    assert [figure(http, name) for name in names] == [count + 1 for count in before]
    assert figure(http, "windlass_gateways") == 1


def test_the_access_log_has_the_request_and_neither_prompt_nor_answer(
    engine: Any, start_gateway: Callable[..., Any], tmp_path: Path
) -> None:
    gateway = start_gateway(access_log=tmp_path / "access.jsonl")
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        http.post("/v1/completions", json=ASK, headers={"x-request-id": "logged"})
        http.post("/v1/completions", json=ASK | {"temperature": 9})
    gateway.stop()  # a line is written when its answer is out
    text = (tmp_path / "access.jsonl").read_text()
    good, bad = (each for each in map(json.loads, text.splitlines()) if each["route"] == "/v1/completions")
    assert (good["id"], good["status"], good["tokens"], good["finish"]) == ("logged", 200, 8, "length")
    assert (good["model"], good["replica"]) == ("tiny@3", "engine")
    assert (bad["status"], bad["code"]) == (400, "invalid_value")
    assert "fox" not in text
