"""Probes one engine: connects, waits for its greeting, and pings it for as long as it lives.

Gateways notice a replica that falls silent while they wait for it; this also notices an idle one. Only time
spent listening counts as silence: on a busy machine the probe itself may have been stalled.
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
    """The state of a replica as seen from outside. Calls `wake` when it becomes ready or is lost."""

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
        """How long we have listened to a ready replica without a message."""
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
        """Ping and read until the connection ends. Silence does not end it: the supervisor judges that."""
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
                    self._receive(body)
            except TimeoutError:
                self._silent_s += PING_S
            except (OSError, msgspec.MsgspecError):
                return

    def _receive(self, body: memoryview) -> None:
        self._silent_s = 0.0
        message = from_engine.decode(body)
        if isinstance(message, Ready):
            self.ready = message
            self._wake()
        elif isinstance(message, Pong | EngineLoad):
            self.in_flight = message.running + message.waiting
            self.is_hung = isinstance(message, Pong) and message.is_hung
