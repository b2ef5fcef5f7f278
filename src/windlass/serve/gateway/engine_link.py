"""The gateway's end of the wire: one connection to the engine, many requests on it.

The engine may come late, die and come back. A request that meets no engine, or loses it, fails at once
with a clear error; the link connects again by itself. A request that nobody waits for is cancelled in
the engine the moment its ticket is closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from windlass.serve.gateway.errors import ApiError
from windlass.serve.gateway.metrics import Metrics
from windlass.spec.wire import (
    LENGTH,
    MOST_FRAME_BYTES,
    Cancel,
    Embed,
    Failed,
    FromEngine,
    Generate,
    Load,
    Many,
    PromptScores,
    Ready,
    Tokens,
    Vectors,
    frame,
    from_engine,
    separated,
)

RETRY_LEAST_S = 0.05
RETRY_MOST_S = 1.0
GREETING_S = 10.0
READ_BYTES = 1 << 16
REPLICA = "engine"

CODE_OF = {
    "bad_tokens": "invalid_value",
    "bad_request": "invalid_value",
    "bad_grammar": "invalid_grammar",
    "context_exceeded": "context_length_exceeded",
    "not_generative": "wrong_model_kind",
    "unknown_model": "model_not_found",
    "unknown_adapter": "model_not_found",
    "model_failed": "engine_failed",
    "gave_up": "engine_unavailable",
}
"""What the engine's own codes mean to a client; the gateway checks first, so they are rare."""

Answer = Tokens | PromptScores | Vectors
log = logging.getLogger(__name__)


class Ticket:
    """What one HTTP request waits for: the messages of its answers, in order of arrival.

    The queue can hold the whole answer (most_tokens bounds it), so a slow client never holds up the
    reading of other clients' messages. Closing the ticket cancels what is unfinished.
    """

    def __init__(self, ids: Sequence[str], forget: Callable[[str, bool], None]) -> None:
        self.tokens = 0
        """How many the engine has written."""
        self._at_first: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._ids = list(ids)
        self._places = {id_: place for place, id_ in enumerate(ids)}
        self._open = set(ids)
        self._forget = forget
        self._arrived: asyncio.Queue[tuple[int, Answer] | ApiError] = asyncio.Queue()

    async def next(self, patience_s: float | None = None) -> tuple[int, Answer] | None:
        """Return the place of an answer and its next message, or None when nothing came in time."""
        try:
            async with asyncio.timeout(patience_s):
                arrived = await self._arrived.get()
        except TimeoutError:
            return None
        if isinstance(arrived, ApiError):
            raise arrived
        return arrived

    def at_first(self, call: Callable[[], None]) -> None:
        """Have something called once, when the first token of any answer is there."""
        self._at_first.append(call)

    def at_end(self, call: Callable[[], None]) -> None:
        """Have something called once, when the ticket is closed."""
        self._at_end.append(call)

    def put(self, message: Answer) -> None:
        if isinstance(message, Tokens):
            self.tokens += len(message.tokens)
            while self._at_first and message.tokens:
                self._at_first.pop()()
        if isinstance(message, Vectors) or (isinstance(message, Tokens) and message.finish is not None):
            self._open.discard(message.id)
        self._arrived.put_nowait((self._places[message.id], message))

    def fail(self, error: ApiError, id_: str | None = None) -> None:
        self._open.discard(id_ or "")
        self._arrived.put_nowait(error)

    def finish(self, place: int) -> None:
        """Want no more of one answer."""
        id_ = self._ids[place]
        self._forget(id_, id_ in self._open)
        self._open.discard(id_)

    def close(self) -> None:
        for place in range(len(self._ids)):
            self.finish(place)
        while self._at_end:
            self._at_end.pop()()


class EngineLink:
    """Connects, multiplexes by id, limits what is in flight, cancels."""

    def __init__(self, path: Path, metrics: Metrics, *, queue: int) -> None:
        self._path = path
        self._metrics = metrics
        self._queue = queue
        self._writer: asyncio.StreamWriter | None = None
        self._tickets: dict[str, Ticket] = {}
        self._asked_at: dict[str, float] = {}
        self._last_at: dict[str, float] = {}
        self._models: dict[str, str] = {}
        self._ready: Ready | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready is not None

    @property
    def ready(self) -> Ready:
        """Return what the engine said about itself; there must be an engine."""
        if self._ready is None:
            raise ApiError(
                "engine_unavailable", "the engine is not connected; try again shortly", retry_after_s=1
            )
        return self._ready

    def ask(self, requests: Sequence[Generate | Embed]) -> Ticket:
        """Send requests to the engine; the caller closes the ticket, whatever happens."""
        self._admit(len(requests))
        ticket = Ticket([request.id for request in requests], self._forget)
        now = time.monotonic()
        for request in requests:
            self._tickets[request.id] = ticket
            self._asked_at[request.id] = now
            self._models[request.id] = request.model or self.ready.model
            self._send(request)
        self._metrics.in_flight.inc(len(requests))
        return ticket

    async def run(self) -> None:
        """Keep a connection to the engine for as long as the gateway lives."""
        pause_s = RETRY_LEAST_S
        while True:
            try:
                await self._converse()
                pause_s = RETRY_LEAST_S
            except (OSError, TimeoutError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
                if self._ready is not None:
                    log.warning("lost the engine: %s", type(error).__name__)
                    pause_s = RETRY_LEAST_S
            finally:
                self._disconnect()
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MOST_S, pause_s * 2)

    def fail_all(self, code: str, message: str) -> None:
        """End everything in flight with one error."""
        for ticket in set(self._tickets.values()):
            ticket.fail(ApiError(code, message, retry_after_s=1))

    def _admit(self, wanted: int) -> None:
        room = self.ready.slots + self._queue
        if wanted > room:
            raise ApiError(
                "invalid_value", f"{wanted} answers are asked for; this server makes {room} at once"
            )
        if len(self._tickets) + wanted > room:
            raise ApiError(
                "queue_full",
                f"{len(self._tickets)} answers are being made or wait already; try again shortly",
                retry_after_s=1,
            )

    async def _converse(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        greeting = asyncio.get_running_loop().call_later(GREETING_S, self._writer.close)
        buffer = bytearray()
        while data := await reader.read(READ_BYTES):
            buffer += data
            for message in _take_frames(buffer):
                greeting.cancel()
                self._receive(message)
        raise ConnectionResetError

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._ready = None
        self._metrics.replica(REPLICA).gone()
        self.fail_all("engine_unavailable", "the engine ended before the answer did; try again shortly")

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Ready():
                self._ready = message
                self._metrics.replica(REPLICA).connected.set(1)
            case Many():
                for each in separated(message):
                    self._receive(each)
            case Load():
                self._metrics.replica(REPLICA).tell(message)
            case Failed():
                self._fail(message)
            case Tokens(finish="cancelled"):
                self._fail(Failed(message.id, "gave_up", "the engine gave this answer up"))
            case Tokens() | PromptScores() | Vectors():
                self._deliver(message)

    def _deliver(self, message: Answer) -> None:
        ticket = self._tickets.get(message.id)
        if ticket is None:
            return  # cancelled, and the engine had not heard of it yet
        if isinstance(message, Tokens) and message.tokens:
            self._measure(message)
        ticket.put(message)

    def _fail(self, message: Failed) -> None:
        ticket = self._tickets.get(message.id)
        if ticket is not None:
            ticket.fail(refusal(message), message.id)

    def _forget(self, id_: str, cancel: bool) -> None:
        if self._tickets.pop(id_, None) is None:
            return
        self._asked_at.pop(id_, None)
        self._last_at.pop(id_, None)
        self._models.pop(id_, None)
        self._metrics.in_flight.dec()
        if cancel:
            self._metrics.cancelled.inc()
            self._send(Cancel(id_))

    def _send(self, message: Generate | Embed | Cancel) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(message))

    def _measure(self, message: Tokens) -> None:
        now = time.monotonic()
        before = self._last_at.get(message.id)
        figures = self._metrics.model(self._models[message.id])
        if before is None:
            figures.first(len(message.tokens), now - self._asked_at[message.id])
        else:
            figures.more(len(message.tokens), now - before)
        if message.finish is not None:
            figures.end(message.finish, now - self._asked_at[message.id])
        self._last_at[message.id] = now


def refusal(failed: Failed) -> ApiError:
    """Say the engine's refusal in the API's codes; what the engine cannot explain is its own failure."""
    return ApiError(CODE_OF.get(failed.code, "engine_failed"), failed.message)


def _take_frames(buffer: bytearray) -> Iterator[FromEngine]:
    """Take whole frames off the front of the buffer; a torn last one stays."""
    start = 0
    while len(buffer) - start >= LENGTH.size:
        (size,) = LENGTH.unpack_from(buffer, start)
        if size > MOST_FRAME_BYTES:
            raise ConnectionResetError
        end = start + LENGTH.size + size
        if len(buffer) < end:
            break
        message = from_engine.decode(memoryview(buffer)[start + LENGTH.size : end])
        start = end
        yield message
    del buffer[:start]
