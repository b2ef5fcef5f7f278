"""Clients that send requests all the time and count failures.

A request failed if it was rejected, broke off, or ended with an error; the text of an answer is not checked.
Half of the clients stream.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ANSWER_S = 120.0
PAUSE_S = 0.02
DONE = b"data: [DONE]"


@dataclass
class TrafficCounts:
    """The totals of all clients."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def note(self, failure: str) -> None:
        with self._turn:
            if failure:
                self.failures.append(failure)
            else:
                self.answered += 1


@contextmanager
def traffic(url: str, model: str, texts: Sequence[str], clients: int) -> Iterator[TrafficCounts]:
    """Send requests while the block runs; at its end the clients finish their last request."""
    tally, stop = TrafficCounts(), threading.Event()
    threads = [
        threading.Thread(target=_client, args=(number, url, model, texts, tally, stop), daemon=True)
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stop.set()
        for thread in threads:
            thread.join(ANSWER_S)


def _client(
    number: int, url: str, model: str, texts: Sequence[str], tally: TrafficCounts, stop: threading.Event
) -> None:
    draw = random.Random(number)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    while not stop.is_set():
        text = draw.choice(texts)
        at = draw.randrange(max(1, len(text) - 40))
        body = {
            "model": model, "prompt": text[at : at + 40] or "a", "max_tokens": draw.randrange(4, 32),
            "temperature": 0.8, "seed": draw.randrange(1 << 30), "stream": bool(number % 2),
        }  # fmt: skip
        try:
            tally.note(ask(connection, body))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            tally.note(f"{type(error).__name__}: {error}")
        stop.wait(PAUSE_S)
    connection.close()


def ask(connection: http.client.HTTPConnection, body: dict[str, Any]) -> str:
    """Send one request; return the failure, or an empty string."""
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    data = reply.read()
    if reply.status != 200:
        return f"{reply.status}: {data[:300].decode(errors='replace')}"
    if not body["stream"]:
        return "" if json.loads(data)["choices"] else "an answer without choices"
    if b'"error"' in data:
        return f"a stream with an error: {data[-300:].decode(errors='replace')}"
    return "" if DONE in data else "a stream that breaks off"
