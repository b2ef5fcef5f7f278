"""The connection to one replica, which many requests share; it reconnects after a loss.

A replica with tasks is pinged. If it stays silent, the link drops the connection, so that other replicas can
continue its tasks, and reconnects. Late messages about those tasks are ignored.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol, cast

import msgspec

from windlass.serve.gateway.fleet.request_handle import AnswerMessage, EngineTask
from windlass.spec.protocol.backoff import Backoff
from windlass.spec.protocol.routing import RoutedReplica
from windlass.spec.protocol.wire import (
    Cancel,
    EmbeddingVectors,
    EngineLoad,
    Failed,
    FromEngine,
    Message,
    MessageBatch,
    Ping,
    Pong,
    Ready,
    Tokens,
    frame,
    from_engine,
    take_frames,
)

RECONNECTS = Backoff(first_s=0.05, max_s=1.0)
GREETING_S = 2.0
SILENT_TICKS = 4
"""Ticks of the fleet (a quarter of a second) without a message. Counted in ticks and not in time, because a
gateway that was suspended has received nothing either."""

Loss = Literal["ended", "silent", "hung", "garbled", "removed"]
"""Why a connection ended."""


class Hub(Protocol):
    """The owner of the links, which gets their events."""

    def on_ready(self, link: EngineLink) -> None: ...

    def on_lost(self, link: EngineLink, why: Loss) -> None: ...

    def on_load(self, link: EngineLink, load: EngineLoad) -> None: ...

    def on_answer(self, task: EngineTask, message: AnswerMessage) -> None: ...

    def on_failed(self, task: EngineTask, failed: Failed) -> None: ...


class EngineLink(asyncio.Protocol):
    """The connection to one replica."""

    def __init__(self, replica: RoutedReplica, hub: Hub) -> None:
        self.replica = replica
        self.ready: Ready | None = None
        self.tasks: dict[str, EngineTask] = {}
        self._hub = hub
        self.memory = 0.0
        """The share of its KV cache that running requests hold."""
        self._reported_busy = 0
        self._silent = 0
        self._pings = 0
        self._loss: Loss = "ended"
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._unsent: list[bytes] = []

    @property
    def is_alive(self) -> bool:
        return self.ready is not None

    @property
    def takes(self) -> bool:
        """Whether it accepts new requests."""
        return self.ready is not None and self.replica.state != "draining"

    @property
    def busy(self) -> int:
        """Answers in progress there, including those of other gateways as far as known."""
        return max(len(self.tasks), self._reported_busy)

    async def run(self) -> None:
        """Keep a connection while the replica is in the routing table."""
        failures = 0
        try:
            while True:
                try:
                    if await self._run_connection():
                        failures = 0
                except OSError:
                    pass  # the engine does not listen yet, or has ended
                failures += 1
                await asyncio.sleep(RECONNECTS.wait_s(failures))
        finally:
            self._disconnect("removed")

    def close(self) -> None:
        """Drop a replica that is no longer in the routing table."""
        self._disconnect("removed")

    def submit(self, task: EngineTask) -> None:
        """Send a task to the replica; the link owns it from now on."""
        if not self.tasks:
            self._silent = 0
        self.tasks[task.id] = task
        first = self.replica.models[0] if self.replica.models else ""
        self._send(task.order("" if task.version == first else task.version))

    def drop(self, task: EngineTask) -> None:
        """Cancel a task."""
        if self.tasks.pop(task.id, None) is not None:
            self._send(Cancel(task.id))

    def tick(self) -> None:
        """Check a replica with tasks: drop it if it is silent, otherwise ping it."""
        if self.ready is None or not self.tasks:
            return
        self._silent += 1
        if self._silent > SILENT_TICKS:
            self._disconnect("silent")
            return
        self._pings += 1
        self._send(Ping(self._pings))

    async def _run_connection(self) -> bool:
        """Run one connection to its end; return whether the engine introduced itself."""
        loop = asyncio.get_running_loop()
        self._gone, self._buffer, self._loss = loop.create_future(), bytearray(), "ended"
        self._unsent = []
        await loop.create_unix_connection(lambda: self, self.replica.socket)
        greeting = loop.call_later(GREETING_S, self._expect_ready)
        try:
            await self._gone
        finally:
            greeting.cancel()
            met = self.ready is not None
            self._forget_connection()
        return met

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def connection_lost(self, exc: Exception | None) -> None:
        if self._buffer:
            self._loss = "garbled"  # a process that ends sends whole frames; a broken connection does not
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        self._buffer += data
        try:
            for body in take_frames(self._buffer):
                self._receive(from_engine.decode(body))
        except (ConnectionResetError, msgspec.MsgspecError):
            self._disconnect("garbled")

    def _receive(self, message: FromEngine) -> None:
        match message:
            case MessageBatch():
                for id_, tokens in message.tokens.items():
                    task = self.tasks.get(id_)
                    if task is not None:
                        self._hub.on_answer(task, Tokens(id_, tokens))
                for other in message.others:
                    self._receive(other)
            case Pong():
                self._reported_busy = message.running + message.waiting
                if message.is_hung:
                    self._disconnect("hung")
            case EngineLoad():
                self._reported_busy = message.running + message.waiting
                self._hub.on_load(self, message)
            case Ready():
                self.ready = message
                self._hub.on_ready(self)
            case _:
                self._receive_answer(message)

    def _receive_answer(self, message: AnswerMessage | Failed) -> None:
        """Pass a message about a task to the hub; ignore one about a task that has left."""
        task = self.tasks.get(message.id)
        if task is None:
            return
        if isinstance(message, Tokens) and message.finish == "cancelled":
            message = Failed(message.id, "gave_up", "the engine cancelled this answer")
        if isinstance(message, Failed):
            del self.tasks[message.id]
            self._hub.on_failed(task, message)
            return
        if isinstance(message, EmbeddingVectors) or (
            isinstance(message, Tokens) and message.finish is not None
        ):
            del self.tasks[message.id]
        self._hub.on_answer(task, message)

    def _expect_ready(self) -> None:
        if self.ready is None:
            self._disconnect("silent")

    def _disconnect(self, why: Loss) -> None:
        self._loss = why
        if self._transport is not None:
            self._transport.abort()
        self._forget_connection()

    def _forget_connection(self) -> None:
        """Forget the connection; report its loss to the hub once."""
        self._transport = None
        if self.ready is not None:
            self.ready, self._reported_busy = None, 0
            self._hub.on_lost(self, self._loss)

    def _send(self, message: Message) -> None:
        """Send a message together with all others of this event loop turn: every write wakes the engine."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(message))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
