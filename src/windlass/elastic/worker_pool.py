"""The workers of an elastic run on this machine: started by a fork server, watched through pidfds.

The fork server (windlass.train.elastic.fork_server) has imported what workers need and forks them. If it
dies, its workers live on, and a new fork server starts the next ones. A pidfd reports the end of a worker
at once, also to a process that is not its parent, and a signal sent through it cannot reach
another process with the same pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.cluster.launch.local_process import ALLOCATOR, event_of, tail_of
from windlass.spec.protocol.elastic import Exited, Started
from windlass.spec.protocol.entrypoint import PARENT

READ_BYTES = 1 << 16
RESTART_S = 0.2
CODE_S = 0.2
"""Time for the fork server to report a worker's exit code."""


@dataclass
class WorkerProcess:
    """A worker process; `descriptor` is its pidfd, -1 until it was started."""

    worker: str
    pid: int = 0
    descriptor: int = -1
    ended_s: float | None = None


class WorkerPool:
    """Starts, watches and ends workers."""

    def __init__(self, module: str, args: Sequence[str], folder: Path, name: str) -> None:
        self._command = [sys.executable, "-m", module, *args]
        self._folder, self._log = folder, folder / "logs" / f"fork-server-{name}.log"
        self._orders = os.pipe()
        """One pipe for all fork servers: workers of an earlier one watch it too."""
        self._children: dict[str, WorkerProcess] = {}
        self._line = b""
        self._fork_server = self._start_fork_server()
        self._died_s: float | None = None

    @property
    def workers(self) -> dict[str, int]:
        """Running workers with their process ids."""
        return {c.worker: c.pid for c in self._children.values() if c.ended_s is None}

    def files(self) -> list[int]:
        """Return the descriptors that become readable when an event is due."""
        alive = [c.descriptor for c in self._children.values() if c.ended_s is None and c.descriptor >= 0]
        return alive + ([self._output] if self._died_s is None else [])

    def start(self, worker: str) -> None:
        self._children[worker] = WorkerProcess(worker)
        os.write(self._orders[1], json.dumps({"start": worker}).encode() + b"\n")

    def kill(self, worker: str) -> None:
        """End a worker by force, if it still runs."""
        child = self._children.get(worker)
        if child is not None:
            self._signal(child, signal.SIGKILL)

    def poll_events(self, now_s: float) -> list[Started | Exited]:
        """Return the events since the last call, without waiting; restart the fork server if it died."""
        events = [found for line in self._lines() if (found := self._take(line)) is not None]
        for child in self._children.values():
            if child.ended_s is None and child.descriptor >= 0 and _ended(child.descriptor):
                child.ended_s = now_s
        late = [c for c in self._children.values() if c.ended_s is not None and now_s - c.ended_s > CODE_S]
        events += [self._remove(child, None) for child in late]
        return events + self._restart_fork_server(now_s)

    def end(self, grace_s: float) -> None:
        """End all workers: SIGTERM, then SIGKILL after `grace_s`."""
        for child in self._children.values():
            self._signal(child, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while self._children and time.monotonic() < until:
            self.poll_events(time.monotonic())
            time.sleep(0.02)
        for child in list(self._children.values()):
            self._signal(child, signal.SIGKILL)
            self._remove(child, None)
        self._fork_server.kill()
        self._fork_server.wait()
        for file in (*self._orders, self._output):
            os.close(file)

    def _start_fork_server(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as errors_to:
            fork_server = subprocess.Popen(
                self._command,
                stdin=self._orders[0],
                stdout=subprocess.PIPE,
                stderr=errors_to,
                start_new_session=True,
                env={
                    "GLIBC_TUNABLES": ALLOCATOR,
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    PARENT: str(os.getpid()),
                },
            )
        assert fork_server.stdout is not None
        self._output = os.dup(fork_server.stdout.fileno())
        fork_server.stdout.close()
        os.set_blocking(self._output, False)
        return fork_server

    def _restart_fork_server(self, now_s: float) -> list[Started | Exited]:
        """Replace a fork server that died; workers it had not started yet are reported as exited."""
        if self._fork_server.poll() is None:
            return []
        if self._died_s is None:
            self._died_s = now_s
            return [self._remove(c, self._fork_server.returncode) for c in self._unstarted()]
        if now_s - self._died_s > RESTART_S:
            os.close(self._output)
            self._line, self._died_s = b"", None
            self._fork_server = self._start_fork_server()
        return []

    def _unstarted(self) -> list[WorkerProcess]:
        return [child for child in self._children.values() if child.descriptor < 0]

    def _take(self, line: bytes) -> Started | Exited | None:
        event = event_of(line) or {}
        child = self._children.get(str(event.get("started", event.get("exited"))))
        if child is None:
            return None
        if "exited" in event:
            return self._remove(child, int(event["code"]))
        child.pid = int(event["pid"])
        try:
            child.descriptor = os.pidfd_open(child.pid)
        except ProcessLookupError:
            return self._remove(child, None)
        return Started(child.worker, child.pid)

    def _remove(self, child: WorkerProcess, code: int | None) -> Exited:
        del self._children[child.worker]
        if child.descriptor >= 0:
            os.close(child.descriptor)
            log = self._folder / "logs" / f"worker-{child.worker}.log"
        else:
            log = self._log
        return Exited(child.worker, code, tail_of(log))

    def _signal(self, child: WorkerProcess, number: signal.Signals) -> None:
        if child.descriptor >= 0 and child.ended_s is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.descriptor, number)

    def _lines(self) -> list[bytes]:
        if self._died_s is not None:
            return []
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._output, READ_BYTES):
                parts.append(part)
        *lines, self._line = (self._line + b"".join(parts)).split(b"\n")
        return lines


def _ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
