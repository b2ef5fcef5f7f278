"""The wire to one replica: connects, and connects again; many requests share the connection.

A replica that is asked for something and says nothing is pinged; one that stays silent is let go, so that
its requests can go on elsewhere, and tried again. What it still says about them is not heard any more.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol, cast

import msgspec

from windlass.serve.gateway.fleet.request_handle import Answer, EngineTask
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

MIN_RETRY_S = 0.05
MAX_RETRY_S = 1.0
GREETING_S = 2.0
SILENT_TICKS = 4
"""Ticks of the fleet, of a quarter of a second, without a word; counted in ticks and not in time, because a
gateway that was held up itself has heard nobody."""

Loss = Literal["ended", "silent", "hung", "garbled", "removed"]
"""Why a replica is not talked to any more."""


class Hub(Protocol):
    """Whoever owns the links."""

    def on_ready(self, link: EngineLink) -> None: ...

    def on_lost(self, link: EngineLink, why: Loss) -> None: ...

    def on_load(self, link: EngineLink, load: EngineLoad) -> None: ...

    def on_answer(self, task: EngineTask, message: Answer) -> None: ...

    def on_failed(self, task: EngineTask, failed: Failed) -> None: ...


class EngineLink(asyncio.Protocol):
    """One replica."""

    def __init__(self, replica: RoutedReplica, hub: Hub) -> None:
        self.replica = replica
        self.ready: Ready | None = None
        self.tasks: dict[str, EngineTask] = {}
        self._hub = hub
        self.memory = 0.0
        """The share of its memory for keys and values that running requests hold."""
        self._told_busy = 0
        self._silent = 0
        self._pings = 0
        self._why: Loss = "ended"
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._unsent: list[bytes] = []

    @property
    def is_alive(self) -> bool:
        return self.ready is not None

    @property
    def takes(self) -> bool:
        """Whether it may be sent new requests."""
        return self.ready is not None and self.replica.state != "draining"

    @property
    def busy(self) -> int:
        """Answers under way there, those of other gateways included as far as they are known."""
        return max(len(self.tasks), self._told_busy)

    async def run(self) -> None:
        """Keep a connection for as long as the replica is in the routing table."""
        pause_s = MIN_RETRY_S
        try:
            while True:
                try:
                    if await self._converse():
                        pause_s = MIN_RETRY_S
                except OSError:
                    pass  # nobody listens there yet, or any more
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_RETRY_S, pause_s * 2)
        finally:
            self._let_go("removed")

    def close(self) -> None:
        """Let go of a replica that is in the table no more."""
        self._let_go("removed")

    def ask(self, task: EngineTask) -> None:
        """Send a task; it is this link's from now on."""
        if not self.tasks:
            self._silent = 0
        self.tasks[task.id] = task
        first = self.replica.models[0] if self.replica.models else ""
        self._send(task.order("" if task.version == first else task.version))

    def drop(self, task: EngineTask) -> None:
        """Want no more of a task."""
        if self.tasks.pop(task.id, None) is not None:
            self._send(Cancel(task.id))

    def tick(self) -> None:
        """Look after a replica that is asked for something: let it go, or ping it."""
        if self.ready is None or not self.tasks:
            return
        self._silent += 1
        if self._silent > SILENT_TICKS:
            self._let_go("silent")
            return
        self._pings += 1
        self._send(Ping(self._pings))

    async def _converse(self) -> bool:
        """Talk until the connection ends; tell whether there was anybody."""
        loop = asyncio.get_running_loop()
        self._gone, self._buffer, self._why = loop.create_future(), bytearray(), "ended"
        self._unsent = []
        await loop.create_unix_connection(lambda: self, self.replica.socket)
        greeting = loop.call_later(GREETING_S, self._expect_ready)
        try:
            await self._gone
        finally:
            greeting.cancel()
            met = self.ready is not None
            self._part()
        return met

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def connection_lost(self, exc: Exception | None) -> None:
        if self._buffer:
            self._why = "garbled"  # a process that ends leaves whole frames; a torn line does not
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        self._buffer += data
        try:
            for body in take_frames(self._buffer):
                self._receive(from_engine.decode(body))
        except (ConnectionResetError, msgspec.MsgspecError):
            self._let_go("garbled")

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
                self._told_busy = message.running + message.waiting
                if message.is_hung:
                    self._let_go("hung")
            case EngineLoad():
                self._told_busy = message.running + message.waiting
                self._hub.on_load(self, message)
            case Ready():
                self.ready = message
                self._hub.on_ready(self)
            case _:
                self._hear(message)

    def _hear(self, message: Answer | Failed) -> None:
        """Pass on what is said about a task; about one that is not ours any more, nothing is."""
        task = self.tasks.get(message.id)
        if task is None:
            return
        if isinstance(message, Tokens) and message.finish == "cancelled":
            message = Failed(message.id, "gave_up", "the engine gave this answer up")
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
            self._let_go("silent")

    def _let_go(self, why: Loss) -> None:
        self._why = why
        if self._transport is not None:
            self._transport.abort()
        self._part()

    def _part(self) -> None:
        """Forget the connection; its tasks are told to the hub, once."""
        self._transport = None
        if self.ready is not None:
            self.ready, self._told_busy = None, 0
            self._hub.on_lost(self, self._why)

    def _send(self, message: Message) -> None:
        """Send with whatever else is said in this turn of the event loop: every write wakes the engine up."""
        if self._transport is None:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(message))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
