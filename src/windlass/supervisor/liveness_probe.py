"""Feels one replica's pulse: connects, waits for its greeting, and pings it for as long as it lives.

Gateways notice a replica that falls silent while they wait for it; this notices one that nobody asks. Only
time that was spent listening counts as silence: on a busy machine it may be we who stood still.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from windlass.spec.protocol.wire import EngineLoad, Ping, Pong, Ready, frame, from_engine, take_frames

PING_S = 0.25
RETRY_S = 0.05
READ_BYTES = 1 << 16


class LivenessProbe:
    """What is known of a replica from the outside. `wake` is called when it becomes ready or is lost."""

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self.ready: Ready | None = None
        self.in_flight = 0
        self.is_hung = False
        self._silent_s = 0.0
        self._path, self._wake = path, wake
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def silent_s(self) -> float:
        """How long we have listened to a replica that was ready, and heard nothing."""
        return 0.0 if self.ready is None else self._silent_s

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(RETRY_S):
            self._silent_s += RETRY_S
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
                if stream.connect_ex(str(self._path)) == 0:
                    self._listen(stream)
                    self._wake()

    def _listen(self, stream: socket.socket) -> None:
        """Ping and hear until the connection ends. Silence does not end it: that is for others to judge."""
        stream.settimeout(PING_S)
        buffer, number, pinged_at = bytearray(), 0, 0.0
        while not self._closed.is_set():
            now = time.monotonic()
            try:
                if now - pinged_at >= PING_S:
                    number, pinged_at = number + 1, now
                    stream.sendall(frame(Ping(number)))
                data = stream.recv(READ_BYTES)
                if not data:
                    return
                buffer += data
                for body in take_frames(buffer):
                    self._hear(body)
            except TimeoutError:
                self._silent_s += PING_S
            except (OSError, msgspec.MsgspecError):
                return

    def _hear(self, body: memoryview) -> None:
        self._silent_s = 0.0
        message = from_engine.decode(body)
        if isinstance(message, Ready):
            self.ready = message
            self._wake()
        elif isinstance(message, Pong | EngineLoad):
            self.in_flight = message.running + message.waiting
            self.is_hung = isinstance(message, Pong) and message.is_hung
