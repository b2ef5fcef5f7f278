"""A repeated request gets the stored answer and is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from windlass.serve.gateway.edge.access import Access
from windlass.serve.records.idempotency_store import Repeatable, claim
from windlass.serve.records.state import open_state
from windlass.spec.protocol.wire import Generate
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "dog", "max_tokens": 3}
KEY = {"idempotency-key": "order-17"}
FIRST = Repeatable("ada", "k", b"body")


@pytest.fixture
def clients(start_gateway: Any, tmp_path: Path) -> Iterator[list[httpx.Client]]:
    """Two gateways with one database."""
    clients = []
    for _ in range(2):
        gateway = start_gateway()
        gateway.service.database = open_state(sqlite_url(tmp_path / "service.db"))
        gateway.wait_until("/readyz", 200)
        clients.append(httpx.Client(base_url=gateway.url, timeout=20))
    yield clients
    for client in clients:
        client.close()


def test_a_repeated_request_gets_the_same_answer_from_any_gateway(clients: Any, engine: Any) -> None:
    first = clients[0].post("/v1/completions", json=ASKED, headers=KEY)
    shuffled = dict(reversed(ASKED.items()))
    again = clients[1].post("/v1/completions", json=shuffled, headers=KEY)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len(engine.of(Generate)) == 1


def test_another_body_or_route_under_the_same_key_is_refused(clients: Any, engine: Any) -> None:
    clients[0].post("/v1/completions", json=ASKED, headers=KEY)
    other = clients[1].post("/v1/completions", json=ASKED | {"max_tokens": 4}, headers=KEY)
    route = clients[1].post("/v1/embeddings", json={"model": "tiny", "input": "dog"}, headers=KEY)
    assert [each.status_code for each in (other, route)] == [422, 422]
    assert other.json()["error"]["code"] == "idempotency_mismatch"
    assert len(engine.of(Generate)) == 1


def test_while_the_first_is_under_way_the_second_waits(clients: Any, engine: Any) -> None:
    engine.held = {1}
    first = Thread(
        target=lambda: clients[0].post("/v1/completions", json=ASKED, headers=KEY | {"x-deadline-ms": "2000"})
    )
    first.start()
    engine.wait_for(lambda received: any(isinstance(each, Generate) for each in received))
    second = clients[1].post("/v1/completions", json=ASKED, headers=KEY)
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "idempotency_in_progress"
    assert second.headers["retry-after"] == "1"
    first.join()


def test_what_failed_may_be_tried_again(clients: Any, engine: Any) -> None:
    engine.fails = "not_a_number"
    assert clients[0].post("/v1/completions", json=ASKED, headers=KEY).status_code == 500
    engine.fails = None
    assert clients[1].post("/v1/completions", json=ASKED, headers=KEY).status_code == 200


def test_an_answer_is_given_though_it_cannot_be_kept(clients: Any, engine: Any, tmp_path: Path) -> None:
    def damage(ask: Generate) -> list[int]:
        for file in tmp_path.glob("service.db*"):
            file.write_bytes(b"no database" * 1000)
        return list(ask.tokens)

    engine.writes = damage
    response = clients[0].post("/v1/completions", json=ASKED, headers=KEY)
    assert response.json()["choices"][0]["text"]
    assert clients[0].post("/v1/completions", json=ASKED, headers=KEY).status_code == 503


def test_a_stream_or_a_strange_key_is_refused(clients: Any, engine: Any) -> None:
    for headers, change in (
        (KEY, {"stream": True}),
        ({"idempotency-key": ""}, {}),
        ({"idempotency-key": "a b"}, {}),
        ({"idempotency-key": "a" * 256}, {}),
    ):
        response = clients[0].post("/v1/completions", json=ASKED | change, headers=headers)
        assert response.json()["error"]["code"] == "invalid_header"
    assert engine.received == []


def test_a_gateway_without_state_says_so(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json=ASKED, headers=KEY).json()["error"]["code"] == "invalid_header"


def test_one_tenants_answers_are_not_anothers(start_gateway: Any, given_keys: Any, engine: Any) -> None:
    gateway = start_gateway(access=Access(keys=given_keys.keys))
    gateway.service.database = given_keys.keys._database
    gateway.wait_until("/readyz", 200)
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        mine = http.post("/v1/completions", json=ASKED, headers=KEY | given_keys.bearer("user"))
        same = http.post("/v1/completions", json=ASKED, headers=KEY | given_keys.bearer("admin"))
    assert same.content == mine.content  # both keys are of the default tenant
    assert claim(gateway.service.database, FIRST, "x", 0.0).state == "claimed"
    other = Repeatable("bob", FIRST.key, FIRST.request)
    assert claim(gateway.service.database, other, "x", 0.0).state == "claimed"
