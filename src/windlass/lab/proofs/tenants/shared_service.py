"""The other half of the proof: a service whose one tenant asks little, while another asks all that it can.

The model is small and its weights are drawn; the engine, the gateway, the keys and the limits are real ones.
The hostile tenant may have a few requests under way, as its limits say. It fills them with prompts as long
as the context, and beside them sends bodies that are too large, holds connections and tries every door.
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
"""Requests that the hostile tenant may have under way."""
FLOODERS = 4
CONNECTIONS = 300
HUGE_BYTES = 16 << 20
TOKENS = 8
PAUSE_S = 0.05
"""For which the engine lets those who are answered wait for a part of a prompt (serve.engine.step)."""
SHORT = {"model": MODEL, "prompt": "one two three", "max_tokens": TOKENS, "temperature": 0.0}
LONG = {"model": MODEL, "prompt": [7] * (SHAPE.context - 64), "max_tokens": 60, "temperature": 0.0}
DOORS = (
    "/admin/keys", "/admin/keys/victim-key", "/admin/tenants", "/admin/tenants/victim", "/admin/limits",
    "/admin/audit", "/admin/control/v1/jobs", "/admin/replicas", "/metrics", "/admin/rollouts",
)  # fmt: skip


@dataclass
class TenantAnswers:
    """What one tenant was answered, and how long that took."""

    took_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def ask_beside(
    folder: Path, count: int, say: Callable[[str], None]
) -> tuple[TenantAnswers, TenantAnswers, TenantAnswers]:
    """Return what the victim was answered alone and beside the hostile tenant, and what that one was."""
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
    """Ask for a short answer, one after another."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        for _ in range(count):
            began_s = time.monotonic()
            status = client.post("/v1/completions", json=SHORT).status_code
            answers.took_s.append(time.monotonic() - began_s)
            answers.statuses[status] += 1


@contextlib.contextmanager
def _flood(url: str, key: str, answers: TenantAnswers) -> Iterator[None]:
    over = threading.Event()
    deeds = [_long] * FLOODERS + [_huge, _pry, _hold]
    threads = [threading.Thread(target=_repeat, args=(deed, url, key, answers, over)) for deed in deeds]
    for thread in threads:
        thread.start()
    over.wait(1.0)  # until it is under way
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


Deed = Callable[[httpx.Client, int, threading.Event], httpx.Response | None]


def _repeat(deed: Deed, url: str, key: str, answers: TenantAnswers, over: threading.Event) -> None:
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
        for number in itertools.count():
            if over.is_set():
                return
            with contextlib.suppress(httpx.HTTPError):
                answer = deed(client, number, over)
                if answer is None:
                    continue
                with answers.lock:
                    answers.statuses[answer.status_code] += 1
                    if deed is _pry and answer.status_code == 200 and "victim" in answer.text:
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
    return client.get(DOORS[number % len(DOORS)])


def _hold(client: httpx.Client, number: int, over: threading.Event) -> None:
    place = urlsplit(str(client.base_url))
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                line = held.enter_context(socket.create_connection((place.hostname, place.port), 5))
                line.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
        over.wait()
