"""The trace of one request: its ids, and the time of each stage.

    head arrives -> body read -> prepared (tokenised) -> admitted, submitted -> first token -> end

The request path only notes times; response headers, the access log and OpenTelemetry spans are made from them
at the end, so that they cost nothing per token. A trace holds no prompt, answer or secret key.
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
"""Sent if a standby version answers, because the wanted one has no replica."""
LAG_EVERY_S = 0.5
_REQUEST_ID = re.compile(rb"(?!.*wlk_)[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


class TracedHandle(Protocol):
    """The parts of a RequestHandle that a trace reads."""

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


class TraceContext(NamedTuple):
    """W3C trace context: trace id, parent span, and whether the client samples the trace."""

    id: str
    parent: str = ""
    sampled: bool = True


class RequestTrace:
    """The trace of one request. Times are of the monotonic clock, in seconds; 0 means not yet."""

    __slots__ = (
        "_context", "_traceparent", "began_at", "body_s", "code", "ended_at", "events", "finish",
        "first_at", "key", "limits", "model", "prepared_at", "prompt_tokens", "queued_s", "replica",
        "request_id", "route", "standby", "status", "submitted_at", "tenant", "tokens", "wall_s", "work_id",
    )  # fmt: skip

    def __init__(self, sent: RequestHeaders) -> None:
        self.began_at, self.wall_s = time.monotonic(), time.time()
        self.request_id, self.work_id = ids_of(sent.get(b"x-request-id", b""))
        self._traceparent = sent.get(b"traceparent", b"")
        self._context: TraceContext | None = None
        self.route = self.code = self.model = self.replica = self.key = self.tenant = self.finish = ""
        self.standby = False
        self.limits: Sequence[tuple[bytes, bytes]] = ()
        """Headers that say how much of its limits the caller has left."""
        self.status = self.prompt_tokens = self.tokens = 0
        self.body_s = self.queued_s = 0.0
        self.prepared_at = self.submitted_at = self.first_at = self.ended_at = 0.0
        self.events: list[tuple[float, str, dict[str, str]]] = []
        """Events such as a fail-over: time, name and attributes."""

    @property
    def context(self) -> TraceContext:
        """The W3C trace context that the request belongs to, parsed on first use."""
        if self._context is None:
            self._context = trace_context_of(self._traceparent)
        return self._context

    async def read(self, receive: Receive) -> Message:
        """Receive a message for the route; the time a client takes to send its body is counted apart."""
        began = time.monotonic()
        message = await receive()
        if message["type"] == "http.request":
            self.body_s += time.monotonic() - began
        return message

    def prepare(self) -> None:
        """Note when the request is tokenised; a route may submit several times, the first counts."""
        self.prepared_at = self.prepared_at or time.monotonic()

    def follow(self, handle: TracedHandle, prompt_tokens: int) -> None:
        """Note that the request was sent to an engine, and follow its first token and its end."""
        self.prompt_tokens += prompt_tokens
        self.submitted_at = self.submitted_at or time.monotonic()
        self.model = handle.served_by

        def first() -> None:
            self.first_at = self.first_at or time.monotonic()

        def end() -> None:
            self.ended_at = time.monotonic()
            self.tokens += handle.tokens
            self.standby = self.standby or handle.served_by != self.model
            self.model, self.replica, self.finish = handle.served_by, handle.replica, handle.reason
            self.queued_s = handle.queued_s
            self.events += handle.moves

        handle.at_first(first)
        handle.at_end(end)

    def own_s(self, until: float) -> float:
        """Return the gateway's own time until then, without the time that the body took to arrive."""
        return max(0.0, until - self.began_at - self.body_s)

    def overhead_s(self, now: float) -> float:
        """Return the gateway's own time: before the engine got the request, and after it had answered."""
        after_s = now - self.ended_at if self.ended_at else 0.0
        return self.own_s(self.submitted_at or now) + after_s

    def headers(self, now: float) -> list[tuple[bytes, bytes]]:
        """Return response headers: the request id; for answers by an engine also version, timing, limits."""
        headers = [(b"x-request-id", self.request_id.encode())]
        if self.submitted_at:
            headers.append((SERVED_BY, self.model.encode("ascii", "replace")))
            if self.standby:
                headers.append((STANDBY, b"true"))
            headers.append((OVERHEAD, b"%.3f" % (1000 * self.overhead_s(now))))
            headers.append((b"server-timing", self._timing()))
            headers += self.limits
        return headers

    def _timing(self) -> bytes:
        """Return the stages in milliseconds, as a W3C Server-Timing header."""
        prepared = self.prepared_at or self.submitted_at
        own_ms, admit_ms = 1000 * self.own_s(prepared), 1000 * (self.submitted_at - prepared)
        if not self.ended_at:
            return b"prepare;dur=%.3f, admit;dur=%.3f" % (own_ms, admit_ms)
        engine_ms = 1000 * (self.ended_at - self.submitted_at)
        return b"prepare;dur=%.3f, admit;dur=%.3f, engine;dur=%.3f" % (own_ms, admit_ms, engine_ms)


def request_trace_of(request: Request) -> RequestTrace:
    """Return the trace that the middleware began."""
    trace: RequestTrace = request.scope["state"]["trace"]
    return trace


def begin(scope: Scope) -> RequestTrace:
    """Begin the trace of a request, and store it in the request's state."""
    trace = RequestTrace(sent_with(scope))
    state = scope.setdefault("state", {})
    state["trace"], state["request_id"], state["work_id"] = trace, trace.request_id, trace.work_id
    return trace


def ids_of(sent: bytes) -> tuple[str, str]:
    """Return the id that the client sees, and the one that engines see.

    A client's id is used if it is short, plain and not a key. A client may send the same id twice at the same
    time, so the id for engines has a random suffix.
    """
    if not _REQUEST_ID.fullmatch(sent):
        made = secrets.token_hex(12)
        return made, made
    return sent.decode(), f"{sent.decode()}.{secrets.token_hex(6)}"


def trace_context_of(sent: bytes) -> TraceContext:
    """Parse a W3C traceparent header; without a valid one, begin a new trace."""
    match = _TRACEPARENT.match(sent)
    # A later version of the format may add fields at the end; version 00 has none.
    if match is None or (sent[match.end() :] and (sent.startswith(b"00") or sent[match.end()] != ord("-"))):
        return TraceContext(secrets.token_hex(16))
    return TraceContext(match[1].decode(), match[2].decode(), bool(int(match[3], 16) & 1))


async def watch_lag(metrics: Metrics) -> None:
    """Measure how late the event loop runs a timer; every stream is delayed by as much."""
    while True:
        due = time.monotonic() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        metrics.loop_lag_s.observe(max(0.0, time.monotonic() - due))
