"""Attacks of a hostile tenant on a control plane from outside: floods, guesses, forged and held requests.

Each attack repeats until stopped, and counts the answers. Anything seen of another tenant is recorded
verbatim: there must be none.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx

CONNECTIONS = 300
HUGE_BYTES = 4 << 20
JOB = 'name = "{name}"\n[corpus]\nsources = ["{source}"]\n[cluster]\ncores = {cores}\nmemory = "{memory}"\n'
TRICKS = (
    "../victim/data", "/etc/shadow", "file:///etc/shadow", "~root/.ssh", "$HOME/x", "s3://other/x",
    "data/../../victim", "simplecache::file:///etc/shadow", "/proc/1/environ",
)  # fmt: skip
GUESSES = (
    "/v1/queue/{job}", "/v1/queue/{job}/events", "/v1/queue/{job}/explain", "/v1/queue/{job}/journal",
    "/v1/queue?tenant=victim", "/v1/jobs/{job}/1", "/v1/models/{job}", "/v1/shares", "/v1/queue", "/v1/plane",
    "/v1/jobs", "/v1/models", "/v1/plan/choices", "/v1/queue/{job}%2f..", "/v1/queue/..%2fvictim%2f{job}",
)  # fmt: skip


class HostileClient:
    """All attacks at once, each in a thread."""

    def __init__(self, url: str, key: str, marks: tuple[str, ...]) -> None:
        """`marks` are secret words in the victim's data."""
        self._url, self._key, self._marks = url, key, marks
        self._over = threading.Event()
        self.answers: Counter[int] = Counter()
        self.admitted: list[str] = []
        self.seen: list[str] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        attacks = (self._flood, self._flood, self._greed, self._trick, self._guess, self._swell, self._hold)
        threads = [threading.Thread(target=self._repeat, args=(attack,)) for attack in attacks]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _repeat(self, attack: Callable[[httpx.Client, int], None]) -> None:
        headers, number = {"authorization": f"Bearer {self._key}"}, 0
        with httpx.Client(base_url=self._url, headers=headers, timeout=30) as client:
            while not self._over.is_set():
                number += 1
                with contextlib.suppress(httpx.HTTPError):
                    attack(client, number)

    def _flood(self, client: httpx.Client, number: int) -> None:
        name = f"work.1.{threading.get_ident() % 100_000}-{number}"
        self._submit(client, JOB.format(name=name, source="python:stdlib", cores=1, memory="64MiB"))

    def _greed(self, client: httpx.Client, number: int) -> None:
        for cores, memory in ((1000, "64MiB"), (1, "900GiB")):
            self._submit(
                client, JOB.format(name=f"eat.9.{number}", source="python:stdlib", cores=cores, memory=memory)
            )
        self._over.wait(0.2)

    def _trick(self, client: httpx.Client, number: int) -> None:
        source = TRICKS[number % len(TRICKS)]
        answer = self._submit(
            client, JOB.format(name=f"work.0.t{number}", source=source, cores=1, memory="9MiB")
        )
        if answer.status_code in (200, 201):
            self.admitted.append(source)
        self._over.wait(0.05)

    def _guess(self, client: httpx.Client, number: int) -> None:
        path = GUESSES[number % len(GUESSES)].format(job="work.0.victim-0")
        self._judge(client.get(path))
        self._over.wait(0.02)

    def _swell(self, client: httpx.Client, number: int) -> None:
        self._judge(client.post("/v1/queue", content=b'{"job": "' + b"x" * HUGE_BYTES))
        self._over.wait(0.1)

    def _hold(self, client: httpx.Client, number: int) -> None:
        """Open connections, send half a request, and stall."""
        place = urlsplit(self._url)
        with contextlib.ExitStack() as held:
            for _ in range(CONNECTIONS):
                with contextlib.suppress(OSError):
                    line = held.enter_context(socket.create_connection((place.hostname, place.port), 5))
                    line.sendall(b"POST /v1/queue HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
            self._over.wait()

    def _submit(self, client: httpx.Client, job: str) -> httpx.Response:
        return self._judge(client.post("/v1/queue", json={"job": job}))

    def _judge(self, answer: httpx.Response) -> httpx.Response:
        found = [mark for mark in self._marks if mark in answer.text]
        with self._lock:
            self.answers[answer.status_code] += 1
            if found:
                self.seen.append(f"{answer.request.url.path}: {answer.text[:200]}")
        return answer
