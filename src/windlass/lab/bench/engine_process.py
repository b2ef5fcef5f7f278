"""Our engine as a separate process, called over its wire protocol exactly as the gateway does."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.processes import ENGINE
from windlass.spec.protocol.wire import (
    LENGTH,
    FromEngine,
    Message,
    MessageBatch,
    Ready,
    frame,
    from_engine,
    separated,
)

LOOK_EVERY_S = 0.05
START_S = 300.0
SILENCE_S = 300.0
READ_BYTES = 1 << 18


class BenchConnection:
    """One connection. `receive` also returns when the bytes arrived, before they were decoded."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._came_s = 0.0
        self._received: deque[FromEngine] = deque()
        ready, _ = self.receive()
        assert isinstance(ready, Ready)
        self.ready = ready

    def send(self, *messages: Message) -> None:
        self._stream.sendall(b"".join(frame(message) for message in messages))

    def receive(self) -> tuple[FromEngine, float]:
        """Wait for the next message; batches are split."""
        while not self._received:
            message = from_engine.decode(self._receive_frame())
            self._received.extend(separated(message) if isinstance(message, MessageBatch) else [message])
        return self._received.popleft(), self._came_s

    def _receive_frame(self) -> bytes:
        while (body := self._take()) is None:
            try:
                data = self._stream.recv(READ_BYTES)
            except TimeoutError:
                raise ProcessFailed(f"the engine sent nothing for {SILENCE_S:.0f} s") from None
            if not data:
                raise ProcessFailed("the engine closed the connection")
            self._came_s = time.monotonic()
            self._buffer += data
        return body

    def close(self) -> None:
        self._stream.close()

    def _take(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._buffer)
        end = LENGTH.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[LENGTH.size : end])
        del self._buffer[:end]
        return body


class BenchEngine:
    """A running engine and a connection to it, as a context: it is stopped when the block ends."""

    def __init__(self, model: Path, log: Path, options: Sequence[str] = ()) -> None:
        self._model, self._log, self._options = model, log, options
        self._last_error: WindlassError | None = None

    def __enter__(self) -> BenchEngine:
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-bench-"))
        path = self._folder / "engine.sock"
        arguments = ["--model", str(self._model), "--name", self._model.name, "--socket", str(path)]
        self._process = LocalProcess("engine", ENGINE, [*arguments, *self._options], self._log)
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.client = BenchConnection(self._connected(path))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connected(self, path: Path) -> socket.socket:
        until = time.monotonic() + START_S
        while True:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.settimeout(SILENCE_S)
            if stream.connect_ex(str(path)) == 0:
                return stream
            stream.close()
            if self._process.exit_code is not None:
                raise self._death()
            if time.monotonic() > until:
                raise ProcessFailed(f"the engine did not listen within {START_S:.0f} s")
            time.sleep(LOOK_EVERY_S)

    def _listen(self) -> None:
        """Drain the engine's pipe, and keep the error that it may end with."""
        try:
            for _ in self._process.events():
                pass
        except WindlassError as error:
            self._last_error = error
        except ValueError:
            return  # the pipe was closed by `close`

    def _death(self) -> WindlassError:
        time.sleep(LOOK_EVERY_S)  # its last message may still be on the way
        if self._last_error is not None:
            return self._last_error
        return ProcessFailed(f"the engine ended with code {self._process.exit_code}", hint=f"see {self._log}")


def resident_bytes(pid: int, field: str = "VmHWM") -> int:
    """Return the peak memory of a process, or with VmRSS the current one."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ProcessFailed(f"process {pid} has no {field}")
