"""The engine's end of the wire: a Unix socket, frames in, frames out.

Only the main thread touches the engine: it takes the messages that have arrived, steps the engine and sends
the replies. Every connection has a thread that reads and one that writes, so neither a slow nor a silent
client delays the others. When a connection closes, its requests are cancelled.
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
    """One client: its messages go into the server's inbox, replies to it wait in the connection's outbox.

    Bytes that the socket accepts at once are sent directly: waking the writing thread costs a core's time.
    """

    def __init__(
        self,
        stream: socket.socket,
        inbox: queue.SimpleQueue[Arrival],
        greeting: Message,
        answer_ping: Callable[[Ping], Pong],
    ) -> None:
        self._stream = stream
        self._answer_ping = answer_ping
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting = 0
        """How many pieces are in the outbox, or being written."""
        self._turn = threading.Lock()
        self.send(greeting)
        inbox.put((self, "opened"))
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; safe to call from several threads."""
        data = frame(message)
        with self._turn:
            if not self._waiting:
                data = data[self._send_at_once(data) :]
            if data:
                self._waiting += 1
                self._outbox.put(data)

    def _send_at_once(self, data: bytes) -> int:
        """Return how many bytes the socket took: none if it is closed, which the reading thread reports."""
        try:
            return self._stream.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return 0

    def close(self) -> None:
        self._outbox.put(None)

    def _read(self) -> None:
        """Put messages into the inbox until the client disconnects or sends an invalid one."""
        try:
            with self._stream.makefile("rb") as file:
                while (body := _read_frame(file.read)) is not None:
                    message = to_engine.decode(body)
                    if isinstance(message, Ping):
                        self.send(self._answer_ping(message))
                    else:
                        self._inbox.put((self, message))
        except (OSError, msgspec.MsgspecError):
            pass  # The connection is unusable; "closed" is reported below, as for any other end.
        self._inbox.put((self, "closed"))

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reading thread sees it too, and reports it
            while (data := self._outbox.get()) is not None:
                self._stream.sendall(data)
                with self._turn:
                    self._waiting -= 1
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()


Arrival = tuple[EngineConnection, EngineRequest | Literal["opened", "closed"]] | None
"""A message or a change of state of a connection; None only wakes the server up."""


class Server:
    """Serves one engine on one socket until `stop` is called or the parent process is gone."""

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
        """Steps, running and waiting: a copy for threads other than the main one."""
        first = offered[0]
        self._names = ["", *(each.model for each in offered)]
        self._ready = Ready(
            first.model, first.family, first.parameters, first.context, first.vocabulary, first.width,
            slots, os.getpid(), first.precision, first.adapters,
            models=list(offered) if len(offered) > 1 else [],
        )  # fmt: skip
        self._listener = listen(path)

    def stop(self) -> None:
        """End `run` after the current step; may be called from a signal handler."""
        self._stopping = True
        self._inbox.put(None)

    def run(self) -> None:
        """Serve; when this returns, the socket is gone and all connections are closed."""
        threading.Thread(target=self._accept, daemon=True).start()
        sent_at = 0.0
        try:
            while not self._stopping and not self._is_orphan():
                self._take(wait_s=TICK_S if self._engine.is_idle else 0.0)
                worked = self._work()
                if worked and (self._engine.is_idle or time.monotonic() - sent_at >= TICK_S):
                    sent_at = time.monotonic()
                    self._send_load()
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

    def _answer_ping(self, ping: Ping) -> Pong:
        """Answer a ping on behalf of the main thread, which may be in a step; called by reading threads."""
        began = self._began
        step_s = 0.0 if began is None else time.monotonic() - began
        return Pong(ping.number, *self._counts, step_s, self._longest_s)

    def _take(self, wait_s: float) -> None:
        """Pass all messages that have arrived to the engine; wait up to `wait_s` for the first."""
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

    def _send_load(self) -> None:
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
            EngineConnection(stream, self._inbox, self._ready, self._answer_ping)

    def _is_orphan(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent


def listen(path: Path) -> socket.socket:
    """Open the socket, for this user only; the stale socket of an engine that has ended is replaced."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise BadInput(f"{path}: too long for the path of a Unix socket, at most {MAX_PATH_BYTES} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists():
        if listener.connect_ex(str(path)) == 0:
            listener.close()
            raise InUse(f"{path}: another engine is listening on this socket")
        path.unlink()
        listener.close()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise BadInput(f"{path}: cannot listen on this socket: {error.strerror}") from None
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def _read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """Return the body of the next frame, or None at the end of the stream or if it is torn or too large."""
    head = read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MAX_FRAME_BYTES:
        return None
    body = read(size)
    return body if len(body) == size else None
