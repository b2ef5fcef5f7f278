"""Hundreds of clients in one thread: streams requested at given times, whether or not others have ended.

A connection is reused once its answer is complete. There are at most `MAX_CONNECTIONS`; a request that finds
none is counted as not sent, so a server that stops answering cannot make the client grow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_CONNECTIONS = 1000
END_OF_HEAD = b"\r\n\r\n"
DONE = b"data: [DONE]"
LAST_CHUNK = b"0\r\n\r\n"
TAIL_BYTES = 64
PATIENCE_S = 30.0


@dataclass(frozen=True)
class ClientResult:
    """The result of a request: the status (0 if the connection broke), and seconds since it was sent."""

    sent_at: float
    status: int
    first_s: float
    whole_s: float


class OverloadConnection(asyncio.Protocol):
    """One connection, one request at a time. It parses only what it needs: the benchmark has one core."""

    def __init__(
        self, free: Callable[[OverloadConnection], None], saw: Callable[[ClientResult], None]
    ) -> None:
        self._free, self._saw = free, saw
        self._transport: asyncio.Transport | None = None
        self._sent_at = self._first_s = 0.0
        self._status = self._left_bytes = 0
        self._tail = b""
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self._sent_at, self._status, self._tail, self._first_s = time.monotonic(), 0, b"", 0.0
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._status:
            data = self._take_head(data)
        if self._status == 200:
            self._first_s = self._first_s or (now - self._sent_at if b"data: " in data else 0.0)
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            if self._tail.endswith(LAST_CHUNK) and DONE in self._tail:
                self._end(now)
        elif self._status:
            self._left_bytes -= len(data)
            if self._left_bytes <= 0:
                self._end(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._sent_at:
            self._status = 0
            self._end(time.monotonic())

    def close(self) -> None:
        if self._transport is not None:
            self._sent_at = 0.0
            self._transport.close()

    def _take_head(self, data: bytes) -> bytes:
        """Parse the status and the length; return the bytes after the head, if it is complete."""
        self._tail += data
        head, end, rest = self._tail.partition(END_OF_HEAD)
        if not end:
            return b""
        self._status, self._tail = int(head[9:12]), b""
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self._left_bytes = int(length or 0)
        return rest

    def _end(self, now: float) -> None:
        seen = ClientResult(self._sent_at, self._status, self._first_s, now - self._sent_at)
        self._sent_at = 0.0
        self._saw(seen)
        if self.is_open:
            self._free(self)


class OverloadClients:
    """All clients of one service."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._requests = requests
        self._idle: list[OverloadConnection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._count = 0
        self.seen: list[ClientResult] = []
        self.unsent = self.under_way = 0
        self._on_end: Callable[[], None] = lambda: None

    def take(self) -> list[ClientResult]:
        """Return the results since the last call."""
        seen, self.seen = self.seen, []
        return seen

    async def keep(self, count: int, seconds: float) -> list[ClientResult]:
        """Keep `count` requests in flight; those unfinished at the end are not counted."""
        self.take()
        self._on_end = self.ask
        for _ in range(count):
            self.ask()
        await asyncio.sleep(seconds)
        self._on_end = lambda: None
        seen = self.take()
        await self.quiet()
        return seen

    async def arrive(self, per_s: float, seconds: float, rng: random.Random) -> list[ClientResult]:
        """Send requests at random times with a mean rate, for `seconds`."""
        self.take()
        begin = at = time.monotonic()
        while at < begin + seconds:
            at += rng.expovariate(per_s)
            await asyncio.sleep(at - time.monotonic())
            self.ask()
        seen = self.take()
        await self.quiet()
        return seen

    async def quiet(self) -> None:
        """Wait until no request is in flight."""
        until = time.monotonic() + PATIENCE_S
        while self.under_way and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def ask(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                self.under_way += 1
                connection.ask(next(self._requests))
                return
            self._count -= 1
        if self._count >= MAX_CONNECTIONS:
            self.unsent += 1
            return
        self._count += 1
        self.under_way += 1
        task = asyncio.get_running_loop().create_task(self._ask_anew())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _ask_anew(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: OverloadConnection(self._freed, self._saw), *self._address
            )
        except OSError:
            self._count -= 1
            self._saw(ClientResult(time.monotonic(), 0, 0.0, 0.0))
            return
        connection.ask(next(self._requests))

    def _freed(self, connection: OverloadConnection) -> None:
        self._idle.append(connection)

    def _saw(self, seen: ClientResult) -> None:
        self.under_way -= 1
        self.seen.append(seen)
        self._on_end()
