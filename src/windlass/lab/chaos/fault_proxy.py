"""A TCP proxy that injects delays, broken connections and errors in front of a store, from a seed.

Bytes pass unchanged, so signatures stay valid. At the beginning of each HTTP request its fate is drawn: pass,
delay, a broken connection, or an error response.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
CHUNK_BYTES = 1 << 16
Fate = Literal["pass", "late", "cut", "error"]


@dataclass(frozen=True)
class FaultRates:
    """The share of requests with each fault; the rest passes unchanged."""

    late: float = 0.0
    late_s: float = 0.5
    cut: float = 0.0
    error: float = 0.0
    statuses: tuple[int, ...] = (500, 503)

    def fate(self, chance: float) -> Fate:
        """Return the fate of a request, for a number drawn from [0, 1)."""
        if chance < self.late:
            return "late"
        if chance < self.late + self.cut:
            return "cut"
        return "error" if chance < self.late + self.cut + self.error else "pass"


@dataclass
class FaultProxy:
    """Listens on a free port and forwards to host:port. Use it as a context."""

    host: str
    port: int
    faults: FaultRates = field(default_factory=FaultRates)
    """May be replaced at any time."""
    seed: int = 1
    counts: dict[str, int] = field(default_factory=dict)
    """Number of requests by fate."""
    sent_bytes: int = 0
    """Bytes of forwarded requests."""
    back_bytes: int = 0
    """Bytes of responses."""
    at: str = "127.0.0.1"
    """The address of the proxy itself: loopback, or this machine's address in a simulated network."""
    listening: int = 0
    """The port of the proxy itself."""

    def __enter__(self) -> FaultProxy:
        self._random, self._ready = random.Random(self.seed), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="faults", daemon=True)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://{self.at}:{self.listening}"

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle, self.at, 0)
        self.listening = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled when the proxy ends
            there_reader, there = await asyncio.open_connection(self.host, self.port)
            back = asyncio.create_task(self._pump(there_reader, writer))
            try:
                await self._forward(reader, writer, there)
            finally:
                back.cancel()
                there.close()
        writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, there: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            if chunk.startswith(METHODS) and not await self._survives(back):
                return
            there.write(chunk)
            self.sent_bytes += len(chunk)
            await there.drain()

    async def _survives(self, back: asyncio.StreamWriter) -> bool:
        """Draw and apply the fate of a request; return whether its connection survives."""
        faults = self.faults
        fate = faults.fate(self._random.random())
        self.counts[fate] = self.counts.get(fate, 0) + 1
        if fate == "late":
            await asyncio.sleep(faults.late_s * self._random.uniform(0.5, 1.5))
        elif fate == "cut":
            back.transport.abort()
        elif fate == "error":
            status = self._random.choice(faults.statuses)
            head = f"HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            back.write(head.encode())
            await back.drain()
        return fate in ("pass", "late")

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                writer.write(chunk)
                self.back_bytes += len(chunk)
                await writer.drain()
            writer.close()
