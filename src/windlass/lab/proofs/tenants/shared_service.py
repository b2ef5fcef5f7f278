"""The service half of the proof: the victim sends few requests, the hostile tenant as many as it can.

The model is small with random weights; the engine, the gateway, the keys and the limits are real. The limits
allow the hostile tenant a few concurrent requests. It fills them with prompts as long as the context, and
also sends oversized bodies, holds connections and tries every route.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from windlass.lab.proofs.failover.requests import MODEL, SHAPE, write_model
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.serve.records.tenants import Tenants
from windlass.spec.limits import Limits
from windlass.spec.serve import Serve
from windlass.store.database import sqlite_url
from windlass.supervisor.background_service import watched
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

ME = Actor("", "proof")
CONCURRENT = 2
"""Concurrent requests of the hostile tenant."""
FLOODERS = 4
CONNECTIONS = 300
HUGE_BYTES = 16 << 20
TOKENS = 8
PAUSE_S = 0.05
"""Seconds that a prefill chunk may delay decoding sequences (serve.engine.step)."""
SHORT = {"model": MODEL, "prompt": "one two three", "max_tokens": TOKENS, "temperature": 0.0}
LONG = {"model": MODEL, "prompt": [7] * (SHAPE.context - 64), "max_tokens": 60, "temperature": 0.0}
ROUTES = (
    "/admin/keys", "/admin/keys/victim-key", "/admin/tenants", "/admin/tenants/victim", "/admin/limits",
    "/admin/audit", "/admin/control/v1/jobs", "/admin/replicas", "/metrics", "/admin/rollouts",
)  # fmt: skip


@dataclass
class TenantAnswers:
    """The answers to one tenant, and their times."""

    took_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def ask_beside(
    folder: Path, count: int, say: Callable[[str], None]
) -> tuple[TenantAnswers, TenantAnswers, TenantAnswers]:
    """Return the victim's answers alone and under attack, and those of the hostile tenant."""
    state = open_state(sqlite_url(folder / "service.db"))
    keys, tenants = ApiKeys(state), Tenants(state)
    tenants.make("victim", ME)
    tenants.make("hostile", ME, limits=Limits(concurrent=CONCURRENT))
    victim = keys.make("victim-key", ME, tenant="victim")[1]
    hostile = keys.make("hostile.key", ME, tenant="hostile", scopes=["use", "admin", "metrics"])[1]
    serve = Serve(port=0, state=sqlite_url(folder / "service.db"), threads=1, slots=8)
    offer = ServiceSpec(MODEL, write_model(folder), serve)
    try:
        with watched(Supervisor(offer, folder / "logs")) as service:
            say(f"a service answers at {service.url}")
            _ask(service.url, victim, 2, TenantAnswers())
            alone, beside, theirs = TenantAnswers(), TenantAnswers(), TenantAnswers()
            _ask(service.url, victim, count, alone)
            with _flood(service.url, hostile, theirs):
                _ask(service.url, victim, count, beside)
        return alone, beside, theirs
    finally:
        state.close()


def _ask(url: str, key: str, count: int, answers: TenantAnswers) -> None:
    """Send requests for short answers, one after another."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        for _ in range(count):
            began_s = time.monotonic()
            status = client.post("/v1/completions", json=SHORT).status_code
            answers.took_s.append(time.monotonic() - began_s)
            answers.statuses[status] += 1


@contextlib.contextmanager
def _flood(url: str, key: str, answers: TenantAnswers) -> Iterator[None]:
    over = threading.Event()
    attacks = [_long] * FLOODERS + [_huge, _pry, _hold]
    threads = [threading.Thread(target=_repeat, args=(attack, url, key, answers, over)) for attack in attacks]
    for thread in threads:
        thread.start()
    over.wait(1.0)  # until the flood has started
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


Attack = Callable[[httpx.Client, int, threading.Event], httpx.Response | None]


def _repeat(attack: Attack, url: str, key: str, answers: TenantAnswers, over: threading.Event) -> None:
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        for number in itertools.count():
            if over.is_set():
                return
            with contextlib.suppress(httpx.HTTPError):
                answer = attack(client, number, over)
                if answer is None:
                    continue
                with answers.lock:
                    answers.statuses[answer.status_code] += 1
                    if attack is _pry and answer.status_code == 200 and "victim" in answer.text:
                        answers.seen.append(f"{answer.request.url.path}: {answer.text[:200]}")


def _long(client: httpx.Client, number: int, over: threading.Event) -> httpx.Response:
    answer = client.post("/v1/completions", json=LONG)
    if answer.status_code == 429:
        over.wait(0.02)
    return answer


def _huge(client: httpx.Client, number: int, over: threading.Event) -> httpx.Response:
    over.wait(0.1)
    return client.post("/v1/completions", content=b'{"prompt": "' + b"x" * HUGE_BYTES)


def _pry(client: httpx.Client, number: int, over: threading.Event) -> httpx.Response:
    over.wait(0.01)
    return client.get(ROUTES[number % len(ROUTES)])


def _hold(client: httpx.Client, number: int, over: threading.Event) -> None:
    place = urlsplit(str(client.base_url))
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                line = held.enter_context(socket.create_connection((place.hostname, place.port), 5))
                line.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
        over.wait()
