"""The gateway's connection to its supervisor: routing tables in, reports out."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.spec.errors import BadInput
from windlass.spec.protocol.routing import GatewayHello, Routing, to_gateway
from windlass.spec.protocol.wire import LENGTH, MAX_FRAME_BYTES, frame

REPORT_S = 0.25
RETRY_S = 0.2
FIRST_S = 60.0


async def first_routing(path: Path) -> Routing:
    """Get the first routing table from the supervisor."""
    async with asyncio.timeout(FIRST_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        try:
            return await _next(reader)
        except asyncio.IncompleteReadError:
            raise BadInput(f"{path}: the supervisor closed the connection without a routing table") from None
        finally:
            writer.close()


class SupervisorClient:
    """Keeps the connection open. If the supervisor ends, the gateway notices that elsewhere and ends too."""

    def __init__(
        self, path: Path, name: str, fleet: ReplicaFleet, apply: Callable[[Routing], Awaitable[None]]
    ) -> None:
        self._path, self._name, self._fleet, self._apply = path, name, fleet, apply

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
                await self._converse()
            await asyncio.sleep(RETRY_S)

    async def _converse(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        writer.write(frame(GatewayHello(self._name, os.getpid())))
        reporting = asyncio.ensure_future(self._report(writer))
        try:
            while True:
                await self._apply(await _next(reader))
        finally:
            reporting.cancel()
            writer.close()

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        while True:
            reports = self._fleet.reports
            messages = reports.take(self._fleet.tasks, self._fleet.alive(), self._fleet.revision)
            writer.write(b"".join(frame(message) for message in messages))
            await writer.drain()
            await reports.wait(REPORT_S)


async def _next(reader: asyncio.StreamReader) -> Routing:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > MAX_FRAME_BYTES:
        raise ConnectionResetError(f"a frame of {size} bytes")
    return to_gateway.decode(await reader.readexactly(size))
