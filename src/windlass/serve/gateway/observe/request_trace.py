"""A request's journey: its ids, and when it passed which station.

    head arrives -> body read -> prepared (text is tokens) -> admitted, asked -> first token -> end

Marks are taken as the request passes; what is made of them (headers of the answer, a line of the access
log, spans of a trace) is made from the finished journey, so that a token pays for none of it. Nothing here
knows a prompt, an answer or a key's secret.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from windlass.http.headers import RequestHeaders, sent_with
from windlass.serve.gateway.observe.gateway_metrics import Metrics

OVERHEAD = b"x-windlass-overhead-ms"
SERVED_BY = b"x-windlass-served-by"
STANDBY = b"x-windlass-standby"
"""Sent where another version answers, because no replica of the wanted one is there."""
LAG_EVERY_S = 0.5
_REQUEST_ID = re.compile(rb"(?!.*wlk_)[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


class Followed(Protocol):
    """What a journey must know of a ticket."""

    tokens: int
    queued_s: float
    reason: str
    moves: list[tuple[float, str, dict[str, str]]]

    @property
    def served_by(self) -> str: ...
    @property
    def replica(self) -> str: ...

    def at_first(self, call: Callable[[], None]) -> None: ...
    def at_end(self, call: Callable[[], None]) -> None: ...


class Trace(NamedTuple):
    """Which trace, below which span of it, and whether the client records it."""

    id: str
    parent: str = ""
    sampled: bool = True


class RequestTrace:
    """One request on its way. Times are of the monotonic clock, in seconds; 0 means never."""

    __slots__ = (
        "_trace", "_traceparent", "asked_at", "began_at", "body_s", "code", "ended_at", "events", "finish",
        "first_at", "key", "limits", "model", "prepared_at", "prompt_tokens", "queued_s", "replica",
        "request_id", "route", "standby", "status", "tenant", "tokens", "wall_s", "work_id",
    )  # fmt: skip

    def __init__(self, sent: RequestHeaders) -> None:
        self.began_at, self.wall_s = time.monotonic(), time.time()
        self.request_id, self.work_id = ids_of(sent.get(b"x-request-id", b""))
        self._traceparent = sent.get(b"traceparent", b"")
        self._trace: Trace | None = None
        self.route = self.code = self.model = self.replica = self.key = self.tenant = self.finish = ""
        self.standby = False
        self.limits: Sequence[tuple[bytes, bytes]] = ()
        """Headers that say how much of its limits the caller has left."""
        self.status = self.prompt_tokens = self.tokens = 0
        self.body_s = self.queued_s = 0.0
        self.prepared_at = self.asked_at = self.first_at = self.ended_at = 0.0
        self.events: list[tuple[float, str, dict[str, str]]] = []
        """What happened on the way, such as a fail-over: when, what, why and from where."""

    @property
    def trace(self) -> Trace:
        """The trace that the request is part of; found out when somebody first asks."""
        if self._trace is None:
            self._trace = trace_of(self._traceparent)
        return self._trace

    async def read(self, receive: Receive) -> Message:
        """Receive for the route; the time that a client takes to send its body is not ours."""
        began = time.monotonic()
        message = await receive()
        if message["type"] == "http.request":
            self.body_s += time.monotonic() - began
        return message

    def prepare(self) -> None:
        """The request is ready to be asked; some ask several times, one after another."""
        self.prepared_at = self.prepared_at or time.monotonic()

    def follow(self, ticket: Followed, prompt_tokens: int) -> None:
        """The engine has been asked; hear of the first token and of the end."""
        self.prompt_tokens += prompt_tokens
        self.asked_at = self.asked_at or time.monotonic()
        self.model = ticket.served_by

        def first() -> None:
            self.first_at = self.first_at or time.monotonic()

        def end() -> None:
            self.ended_at = time.monotonic()
            self.tokens += ticket.tokens
            self.standby = self.standby or ticket.served_by != self.model
            self.model, self.replica, self.finish = ticket.served_by, ticket.replica, ticket.reason
            self.queued_s = ticket.queued_s
            self.events += ticket.moves

        ticket.at_first(first)
        ticket.at_end(end)

    def own_s(self, until: float) -> float:
        """Return how long the gateway worked until then, without the time that the body took to arrive."""
        return max(0.0, until - self.began_at - self.body_s)

    def overhead_s(self, now: float) -> float:
        """Return what the gateway itself took: before the engine was asked, and after it had answered."""
        after_s = now - self.ended_at if self.ended_at else 0.0
        return self.own_s(self.asked_at or now) + after_s

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return the headers that tell of the journey so far; the last two only of answers by an engine."""
        told = [(b"x-request-id", self.request_id.encode())]
        if self.asked_at:
            told.append((SERVED_BY, self.model.encode("ascii", "replace")))
            if self.standby:
                told.append((STANDBY, b"true"))
            told.append((OVERHEAD, b"%.3f" % (1000 * self.overhead_s(now))))
            told.append((b"server-timing", self._timing()))
            told += self.limits
        return told

    def _timing(self) -> bytes:
        """Tell stages as browsers show them (W3C Server Timing), in milliseconds."""
        prepared = self.prepared_at or self.asked_at
        own_ms, admit_ms = 1000 * self.own_s(prepared), 1000 * (self.asked_at - prepared)
        if not self.ended_at:
            return b"prepare;dur=%.3f, admit;dur=%.3f" % (own_ms, admit_ms)
        engine_ms = 1000 * (self.ended_at - self.asked_at)
        return b"prepare;dur=%.3f, admit;dur=%.3f, engine;dur=%.3f" % (own_ms, admit_ms, engine_ms)


def request_trace_of(request: Request) -> RequestTrace:
    """Return the journey that the guard began."""
    journey: RequestTrace = request.scope["state"]["journey"]
    return journey


def begin(scope: Scope) -> RequestTrace:
    """Begin a request's journey, and leave it where routes find it."""
    journey = RequestTrace(sent_with(scope))
    state = scope.setdefault("state", {})
    state["journey"], state["request_id"], state["work_id"] = journey, journey.request_id, journey.work_id
    return journey


def ids_of(sent: bytes) -> tuple[str, str]:
    """Return the id that the client sees, and the one that engines see.

    A client's id is kept if it is short, plain and no key. It may send the same one twice at the same time,
    so what engines see has an end of our own.
    """
    if not _REQUEST_ID.fullmatch(sent):
        made = secrets.token_hex(12)
        return made, made
    return sent.decode(), f"{sent.decode()}.{secrets.token_hex(6)}"


def trace_of(sent: bytes) -> Trace:
    """Read a W3C traceparent; without one, or with a wrong one, begin a trace."""
    match = _TRACEPARENT.match(sent)
    # A later version of the format may add fields at the end; version 00 has none.
    if match is None or (sent[match.end() :] and (sent.startswith(b"00") or sent[match.end()] != ord("-"))):
        return Trace(secrets.token_hex(16))
    return Trace(match[1].decode(), match[2].decode(), bool(int(match[3], 16) & 1))


async def watch_lag(metrics: Metrics) -> None:
    """Measure how late the event loop runs a timer: what every stream waits for, if anything hogs it."""
    while True:
        due = time.monotonic() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        metrics.loop_lag_s.observe(max(0.0, time.monotonic() - due))
