"""Reads an answer as a client: its content, and the longest pause in it."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from windlass.lab.proofs.failover.requests import StreamRequest

PATIENCE_S = 120.0
DATA = b"data: "
DONE = b"[DONE]"


@dataclass
class StreamContent:
    """The content of one answer, without its id and time."""

    texts: dict[int, str] = field(default_factory=dict)
    scores: dict[int, list[Any]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    trouble: str = ""
    """Why it is broken; empty for a complete answer."""
    began: float = 0.0
    ended: float = 0.0
    pause_s: float = field(default=0.0, compare=False)
    """The longest time without data, from the request on."""

    def says_the_same(self, other: StreamContent) -> bool:
        return (self.texts, self.scores, self.finishes, self.usage) == (
            other.texts, other.scores, other.finishes, other.usage,
        )  # fmt: skip

    def take(self, chunk: dict[str, Any]) -> None:
        """Add one chunk of a stream, or a whole answer."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            place = int(choice["index"])
            part = choice.get("delta") or choice.get("message") or choice
            text = part.get("text", part.get("content")) or ""
            self.texts[place] = self.texts.get(place, "") + text
            self.scores.setdefault(place, []).extend(_scores(choice.get("logprobs")))
            if choice.get("finish_reason") is not None:
                self.finishes[place] = choice["finish_reason"]


def listen(url: str, ask: StreamRequest) -> StreamContent:
    """Send a request and read its answer to the end."""
    answer = StreamContent(began=time.monotonic())
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
    try:
        connection.request("POST", ask.path, ask.encoded, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            answer.trouble = f"{response.status}: {response.read(2000).decode(errors='replace')}"
        elif not ask.streams:
            answer.take(json.loads(response.read()))
        else:
            _read_events(response, answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        answer.trouble = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    answer.ended = time.monotonic()
    return answer


def _read_events(response: http.client.HTTPResponse, answer: StreamContent) -> None:
    last, name = answer.began, b""
    for line in response:
        now = time.monotonic()
        answer.pause_s, last = max(answer.pause_s, now - last), now
        if line.startswith(b"event: "):
            name = line[len(b"event: ") :].strip()
        if not line.startswith(DATA):
            continue
        if name == b"error":
            answer.trouble = line.decode(errors="replace").strip()
            return
        if line[len(DATA) :].strip() == DONE:
            return
        answer.take(json.loads(line[len(DATA) :]))
    answer.trouble = "the stream ended without [DONE]"


def _scores(logprobs: dict[str, Any] | None) -> list[Any]:
    """Return log-probabilities as one list, for either route."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    columns = [logprobs[name] for name in ("tokens", "token_logprobs", "text_offset")]
    tops = logprobs["top_logprobs"] or [None] * len(columns[0])
    return [list(row) for row in zip(*columns, tops, strict=True)]
