"""The engine's end of the wire: a Unix socket, frames in, frames out.

The main thread alone touches the engine: it takes what has arrived, steps, and hands the answers over.
Every connection has a thread that reads and one that writes, so neither a slow nor a silent client
holds up the others. A connection that ends takes its requests along.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from windlass.serve.engine.engine_api import EngineProtocol, Reply
from windlass.spec.errors import BadInput, InUse, did_you_mean
from windlass.spec.protocol.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    Answer,
    Embed,
    EngineLoad,
    EngineRequest,
    Failed,
    Generate,
    Message,
    ModelInfo,
    Ping,
    Pong,
    Ready,
    frame,
    joined,
    to_engine,
)

log = logging.getLogger(__name__)

TICK_S = 1.0
MAX_PATH_BYTES = 100


class EngineConnection:
    """One client: what it sends goes into the server's inbox, what it is sent waits in its own outbox.

    What the socket takes at once does not wait: to wake the thread that writes would cost a core its work.
    """

    def __init__(
        self,
        stream: socket.socket,
        inbox: queue.SimpleQueue[Arrival],
        greeting: Message,
        pulse: Callable[[Ping], Pong],
    ) -> None:
        self._stream = stream
        self._pulse = pulse
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting = 0
        """How many pieces the outbox has got and not yet written."""
        self._turn = threading.Lock()
        self.send(greeting)
        inbox.put((self, "opened"))
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def send(self, message: Message) -> None:
        """Hand over a message; frames of several threads do not mix."""
        data = frame(message)
        with self._turn:
            if not self._waiting:
                data = data[self._send_at_once(data) :]
            if data:
                self._waiting += 1
                self._outbox.put(data)

    def _send_at_once(self, data: bytes) -> int:
        """Return how many bytes the socket took; one that is gone takes none, as the reader will tell."""
        try:
            return self._stream.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return 0

    def close(self) -> None:
        self._outbox.put(None)

    def _read(self) -> None:
        """Deliver messages until the client goes or says something that is no message."""
        try:
            with self._stream.makefile("rb") as file:
                while (body := _read_frame(file.read)) is not None:
                    message = to_engine.decode(body)
                    if isinstance(message, Ping):
                        self.send(self._pulse(message))
                    else:
                        self._inbox.put((self, message))
        except (OSError, msgspec.MsgspecError):
            pass  # The connection is of no further use; its end is told below, as any other end.
        self._inbox.put((self, "closed"))

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader learns of it too, and tells
            while (data := self._outbox.get()) is not None:
                self._stream.sendall(data)
                with self._turn:
                    self._waiting -= 1
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


Arrival = tuple[EngineConnection, EngineRequest | Literal["opened", "closed"]] | None
"""What a connection said, or became; None only wakes the server up."""


class Server:
    """Serves one engine on one socket until it is told to stop or its parent is gone."""

    def __init__(
        self,
        engine: EngineProtocol,
        offered: Sequence[ModelInfo],
        slots: int,
        path: Path,
        *,
        parent: int | None = None,
    ) -> None:
        self._engine = engine
        self._parent = parent
        self._path = path
        self._inbox: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._connections: set[EngineConnection] = set()
        self._stopping = False
        self._busy_s = 0.0
        self._began: float | None = None
        self._longest_s = 0.0
        self._counts = (0, 0, 0)
        """Steps, running and waiting, for threads that must not look into the engine."""
        first = offered[0]
        self._names = ["", *(each.model for each in offered)]
        self._ready = Ready(
            first.model, first.family, first.parameters, first.context, first.vocabulary, first.width,
            slots, os.getpid(), first.precision, first.adapters,
            models=list(offered) if len(offered) > 1 else [],
        )  # fmt: skip
        self._listener = listen(path)

    def stop(self) -> None:
        """End `run` after the step at hand; may be called from a signal handler."""
        self._stopping = True
        self._inbox.put(None)

    def run(self) -> None:
        """Serve; when this returns, the socket is gone and all connections are closed."""
        threading.Thread(target=self._accept, daemon=True).start()
        told_at = 0.0
        try:
            while not self._stopping and not self._is_orphan():
                self._take(wait_s=TICK_S if self._engine.is_idle else 0.0)
                worked = self._work()
                if worked and (self._engine.is_idle or time.monotonic() - told_at >= TICK_S):
                    told_at = time.monotonic()
                    self._tell_load()
        finally:
            self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # wakes the thread that accepts, where the system allows it
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for connection in self._connections:
                connection.close()

    def _work(self) -> bool:
        if self._engine.is_idle:
            return False
        engine, began = self._engine, time.monotonic()
        self._began = began
        replies = engine.step()
        self._began = None
        self._counts = engine.steps, engine.running_count, engine.waiting_count
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        self._deliver(replies)
        self._busy_s += time.monotonic() - began
        return True

    def _pulse(self, ping: Ping) -> Pong:
        """Answer for the main thread, which may be in the middle of a step; called by other threads."""
        began = self._began
        step_s = 0.0 if began is None else time.monotonic() - began
        return Pong(ping.number, *self._counts, step_s, self._longest_s)

    def _take(self, wait_s: float) -> None:
        """Give the engine all that has arrived; without work, wait for something to arrive."""
        try:
            arrival = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            while True:
                self._receive(arrival)
                arrival = self._inbox.get_nowait()
        except queue.Empty:
            if wait_s and self._engine.is_idle:
                self._engine.rest()

    def _receive(self, arrival: Arrival) -> None:
        match arrival:
            case None:
                return
            case (connection, "opened"):
                self._connections.add(connection)
            case (connection, "closed"):
                self._connections.discard(connection)
                self._engine.forget(connection)
                connection.close()
            case (connection, Generate() | Embed() as request) if request.model not in self._names:
                why = f"no model '{request.model}'; {did_you_mean(request.model, self._names[1:])}"
                connection.send(Failed(request.id, "unknown_model", why))
            case (connection, message):
                self._engine.add(connection, message)

    def _deliver(self, replies: Sequence[Reply]) -> None:
        by_owner: dict[EngineConnection, list[Answer]] = {}
        for owner, message in replies:
            assert isinstance(owner, EngineConnection)
            if isinstance(message, Failed):
                log.warning("%s: %s", message.id, message.code)
            by_owner.setdefault(owner, []).append(message)
        for connection, answers in by_owner.items():
            connection.send(joined(answers))

    def _tell_load(self) -> None:
        engine = self._engine
        load = EngineLoad(
            engine.running_count, engine.waiting_count, engine.steps, engine.tokens, self._busy_s,
            engine.blocks_used, engine.blocks_idle, engine.blocks_in_all,
        )  # fmt: skip
        for connection in self._connections:
            connection.send(load)

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # the listener was closed
            EngineConnection(stream, self._inbox, self._ready, self._pulse)

    def _is_orphan(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent


def listen(path: Path) -> socket.socket:
    """Open the socket, for this user only; a file left by an engine that is gone is replaced."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise BadInput(f"{path}: too long for a Unix socket, which takes {MAX_PATH_BYTES} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists():
        if listener.connect_ex(str(path)) == 0:
            listener.close()
            raise InUse(f"{path}: another engine listens there")
        path.unlink()
        listener.close()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise BadInput(f"{path}: cannot listen there: {error.strerror}") from None
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def _read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """Return the body of the next frame, or None when there is none or it is torn or too large."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MAX_FRAME_BYTES:
        return None
    body = read(size)
    return body if len(body) == size else None
