"""Limits as a client meets them: a real gateway process, the scripted engine, plain HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.serve.records.tenants import Tenants
from windlass.spec.limits import Limits
from windlass.spec.protocol.wire import Cancel
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
ASK = {"model": "tiny", "prompt": "dog", "max_tokens": 4}
ME = Actor("", "tester")
Start = Callable[..., httpx.Client]


@pytest.fixture
def start(model_dir: Path, socket_path: Path, tmp_path: Path, engine: Any) -> Iterator[Start]:
    """Start gateways with some table [serve]; return a client of each."""
    processes: list[subprocess.Popen[str]] = []

    def start(**serve: Any) -> httpx.Client:
        settings = tmp_path / f"settings-{len(processes)}.json"
        settings.write_text(json.dumps({"port": 0, "open": True} | serve))
        command = [
            sys.executable,
            "-m",
            "windlass.serve.gateway",
            "--model",
            str(model_dir),
            "--name",
            "tiny@3",
        ]
        command += ["--socket", str(socket_path), "--settings", str(settings)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        client = httpx.Client(
            base_url=json.loads(process.stdout.readline())["listening"]["url"], timeout=PATIENCE_S
        )
        until = time.monotonic() + PATIENCE_S
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < until, "never ready"
        return client

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def complete(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/completions", json=ASK | body)


def stream(client: httpx.Client) -> Any:
    return client.stream("POST", "/v1/completions", json=ASK | {"stream": True})


def test_a_burst_is_admitted_and_the_next_request_learns_when_to_retry(start: Start) -> None:
    client = start(limits={"all": {"requests_per_second": 0.01, "burst": 3}})
    assert [complete(client).status_code for _ in range(3)] == [200, 200, 200]
    refused = complete(client)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    assert "requests_per_second of the whole service: 3 of 3" in refused.json()["error"]["message"]
    assert 90 <= int(refused.headers["retry-after"]) <= 100


def test_answers_say_what_is_left_of_the_tightest_limit(start: Start) -> None:
    client = start(limits={"all": {"requests_per_second": 0.01, "burst": 3, "tokens_per_day": 1_000_000}})
    answer = complete(client)
    assert (answer.headers["ratelimit-limit"], answer.headers["ratelimit-remaining"]) == ("3", "2")


def test_tokens_that_were_not_used_are_given_back(start: Start, engine: Any) -> None:
    engine.stop_after = 1
    client = start(limits={"all": {"tokens_per_day": 130}})
    needed = [complete(client, max_tokens=90) for _ in range(5)]
    assert [answer.status_code for answer in needed] == [200] * 5
    refused = complete(client, max_tokens=120)
    assert refused.json()["error"]["code"] == "quota_exhausted"
    assert 0 < int(refused.headers["retry-after"]) <= 86400


def test_a_request_that_no_day_could_hold_is_a_mistake_of_the_client(start: Start) -> None:
    refused = complete(start(limits={"all": {"tokens_per_day": 50}}), max_tokens=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_no_more_are_under_way_than_may_be_and_the_end_of_one_makes_room(start: Start, engine: Any) -> None:
    engine.held = {1}
    client = start(limits={"all": {"concurrent": 2}})
    with httpx.Client(base_url=client.base_url, timeout=PATIENCE_S) as other:
        with stream(client) as first, stream(other) as second:
            lines = [first.iter_lines(), second.iter_lines()]  # kept: a client leaves when they are collected
            assert [next(each) for each in lines]
            assert complete(client).json()["error"]["code"] == "too_many_concurrent"
        engine.wait_for(lambda received: sum(isinstance(message, Cancel) for message in received) == 2)
        engine.held = None
        assert complete(client).status_code == 200


def test_two_gateways_share_one_limit(start: Start, tmp_path: Path) -> None:
    state = sqlite_url(tmp_path / "service.db")
    limits = {"all": {"requests_per_second": 0.01, "burst": 10}}
    clients = [start(state=state, limits=limits) for _ in range(2)]
    answers = [complete(clients[number % 2]).status_code for number in range(16)]
    assert answers.count(200) == 10
    assert answers.count(429) == 6


def test_a_key_is_held_to_its_own_limits_and_to_its_tenants(start: Start, tmp_path: Path) -> None:
    state = sqlite_url(tmp_path / "service.db")
    database = open_state(state)
    Tenants(database).make("ada", ME, limits=Limits(requests_per_second=0.01, burst=3))
    keys = ApiKeys(database)
    _, tight = keys.make("tight", ME, tenant="ada", limits=Limits(requests_per_second=0.01, burst=2))
    _, loose = keys.make("loose", ME, tenant="ada")
    client = start(state=state, open=False)
    statuses = []
    for token in (tight, tight, tight, loose, loose):
        answer = client.post("/v1/completions", json=ASK, headers={"authorization": f"Bearer {token}"})
        statuses.append(answer.status_code)
    assert statuses == [200, 200, 429, 200, 429]
    keys.limit("tight", Limits(requests_per_second=0.01, burst=50), ME)
    Tenants(database).set("ada", ME, limits=Limits())
    answer = client.post("/v1/completions", json=ASK, headers={"authorization": f"Bearer {tight}"})
    assert answer.status_code == 200


def test_a_deadline_that_cannot_be_met_is_refused_before_the_engine_gets_it(
    start: Start, engine: Any
) -> None:
    engine.pause_s = 0.05
    client = start()
    for _ in range(3):
        assert complete(client, max_tokens=10).status_code == 200
    before = len(engine.received)
    refused = client.post(
        "/v1/completions", json=ASK | {"max_tokens": 100}, headers={"x-deadline-ms": "1000"}
    )
    assert refused.json()["error"]["code"] == "deadline_unreachable"
    assert len(engine.received) == before
