"""The workers of an elastic run on this machine: started through a nursery, watched by descriptors.

The nursery is a process that has loaded what workers need (windlass.train.elastic.fork_server) and forks
them. Should it die, its workers live on, and another one starts the next. A descriptor of each worker tells
its end at once, whoever its parent is, and a signal sent through it never reaches a stranger with the same
number.
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
"""For the nursery to say with which code a worker ended."""


@dataclass
class WorkerProcess:
    """A worker process; `descriptor` is -1 until it was started."""

    worker: str
    pid: int = 0
    descriptor: int = -1
    ended_s: float | None = None


class WorkerPool:
    """Starts, watches and ends workers."""

    def __init__(self, module: str, args: Sequence[str], folder: Path, name: str) -> None:
        self._command = [sys.executable, "-m", module, *args]
        self._folder, self._log = folder, folder / "logs" / f"nursery-{name}.log"
        self._orders = os.pipe()
        """One pipe for all nurseries: workers of an earlier one watch it too."""
        self._children: dict[str, WorkerProcess] = {}
        self._line = b""
        self._nursery = self._begin()
        self._died_s: float | None = None

    @property
    def workers(self) -> dict[str, int]:
        """Those that run, with their process ids."""
        return {c.worker: c.pid for c in self._children.values() if c.ended_s is None}

    def files(self) -> list[int]:
        """Return the descriptors that become readable when there is something to hear."""
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

    def hear(self, now_s: float) -> list[Started | Exited]:
        """Return what happened since the last call, without waiting; keep a nursery alive."""
        heard = [found for line in self._lines() if (found := self._take(line)) is not None]
        for child in self._children.values():
            if child.ended_s is None and child.descriptor >= 0 and _ended(child.descriptor):
                child.ended_s = now_s
        late = [c for c in self._children.values() if c.ended_s is not None and now_s - c.ended_s > CODE_S]
        heard += [self._bury(child, None) for child in late]
        return heard + self._tend(now_s)

    def end(self, grace_s: float) -> None:
        """End all: politely, then by force."""
        for child in self._children.values():
            self._signal(child, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while self._children and time.monotonic() < until:
            self.hear(time.monotonic())
            time.sleep(0.02)
        for child in list(self._children.values()):
            self._signal(child, signal.SIGKILL)
            self._bury(child, None)
        self._nursery.kill()
        self._nursery.wait()
        for file in (*self._orders, self._output):
            os.close(file)

    def _begin(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as errors_to:
            nursery = subprocess.Popen(
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
        assert nursery.stdout is not None
        self._output = os.dup(nursery.stdout.fileno())
        nursery.stdout.close()
        os.set_blocking(self._output, False)
        return nursery

    def _tend(self, now_s: float) -> list[Started | Exited]:
        """Replace a nursery that died; what it had not started yet it never will."""
        if self._nursery.poll() is None:
            return []
        if self._died_s is None:
            self._died_s = now_s
            return [self._bury(c, self._nursery.returncode) for c in self._unstarted()]
        if now_s - self._died_s > RESTART_S:
            os.close(self._output)
            self._line, self._died_s = b"", None
            self._nursery = self._begin()
        return []

    def _unstarted(self) -> list[WorkerProcess]:
        return [child for child in self._children.values() if child.descriptor < 0]

    def _take(self, line: bytes) -> Started | Exited | None:
        event = event_of(line) or {}
        child = self._children.get(str(event.get("started", event.get("exited"))))
        if child is None:
            return None
        if "exited" in event:
            return self._bury(child, int(event["code"]))
        child.pid = int(event["pid"])
        try:
            child.descriptor = os.pidfd_open(child.pid)
        except ProcessLookupError:
            return self._bury(child, None)
        return Started(child.worker, child.pid)

    def _bury(self, child: WorkerProcess, code: int | None) -> Exited:
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
