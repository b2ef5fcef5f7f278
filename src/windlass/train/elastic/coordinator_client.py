"""A worker's connection to the coordinator, kept by a thread of its own.

The main thread computes and waits for peers; this thread finds the coordinator, sends heartbeats with the
worker's progress, and receives its decisions. If the coordinator dies, the worker keeps training: the thread
finds the next one through the lease and announces the worker again.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from windlass import __version__
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.elastic import (
    BEAT_S,
    COORDINATOR,
    AbortGeneration,
    Assign,
    DrainAtStep,
    ElasticHello,
    Heartbeat,
    RunEvent,
    Shutdown,
    WaitingForAssignment,
    WorkerDone,
    decode,
    encode,
)
from windlass.spec.protocol.link import Link, parse_address, wait_for
from windlass.store.lease import leader
from windlass.store.store_dir import StoreDir

CONNECT_S = 1.0
RETRY_EVERY_S = 0.2
SILENT_S = 2.0
"""Silence of the coordinator after which the worker looks for another one."""
REMEMBERED = 4096
"""Maximum number of steps between two heartbeats whose compute times are kept."""


@dataclass(frozen=True)
class WorkerPosition:
    """The worker's position, as its main thread last reported it."""

    generation: int | None = None
    step: int = 0
    phase: str = "waiting"


class CoordinatorClient:
    """The connection to the coordinator. All methods but `_run` and its callees belong to the main thread."""

    def __init__(self, folder: Path, hello: ElasticHello) -> None:
        self._lease = StoreDir(folder / COORDINATOR)
        self._hello = replace(hello, role="worker", pid=os.getpid(), version=__version__)
        self._where = WorkerPosition()
        self._busy: deque[float] = deque(maxlen=REMEMBERED)
        self._waiting: WaitingForAssignment | None = None
        self._assigned: queue.Queue[Assign | None] = queue.Queue()
        self._outbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        self._drain: DrainAtStep | None = None
        self._abandoned = 0
        self._epoch = 0
        self._ended = threading.Event()
        self.dismissed: str | None = None
        """Why the coordinator has dismissed this worker; None if it has not."""
        self.on_abandon: Callable[[], None] = lambda: None
        """Called in this thread when the generation is aborted: the main thread may be blocked."""
        self._thread = threading.Thread(target=self._run, name="coordinator-client", daemon=True)
        self._thread.start()

    def wait_for_assignment(self, step: int, why: str) -> Assign | None:
        """Wait for the next assignment; None when this worker is dismissed."""
        generation = self._where.generation
        self._where = WorkerPosition(generation, step)
        self._drain = None
        self._waiting = WaitingForAssignment(generation, step, why)
        self._wake_up()
        assigned = self._assigned.get()
        self._waiting = None
        if assigned is not None:
            self._where = WorkerPosition(assigned.generation, step, "forming")
        return assigned

    def at(self, step: int, phase: str, busy_s: float | None = None) -> None:
        """Set the worker's position, sent with the next heartbeat."""
        self._where = WorkerPosition(self._where.generation, step, phase)
        if busy_s is not None:
            self._busy.append(busy_s)

    def reset_pace(self) -> None:
        """Drop the compute times measured in an earlier generation."""
        self._busy.clear()

    @property
    def drain_request(self) -> DrainAtStep | None:
        """The request to come to the waiting, or to stop, at the next drain."""
        drain = self._drain
        return drain if drain is not None and drain.generation == self._where.generation else None

    @property
    def abandoned(self) -> bool:
        """True if the coordinator has aborted the worker's generation."""
        return self._where.generation is not None and self._abandoned >= self._where.generation

    def send_event(self, event: dict[str, Any]) -> None:
        """Send an event to the clients that follow the run."""
        self._send(encode(RunEvent(event)))

    def done(self, outcome: str, error: dict[str, Any] | None = None) -> None:
        """Send the final message and wait until it is out."""
        self._send(encode(WorkerDone(outcome, error)))
        self._ended.set()
        self._wake_up()
        self._thread.join(2 * CONNECT_S)

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox.put(message)
        self._wake_up()

    def _wake_up(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it will wake anyway
            os.write(self._wakeup_write, b"!")

    def _run(self) -> None:
        while not (self._ended.is_set() and self._outbox.empty()):
            link = self._connected()
            if link is None:
                if self._ended.is_set():
                    return
                time.sleep(RETRY_EVERY_S)
                continue
            self._exchange_messages(link)
            link.close()

    def _connected(self) -> Link | None:
        """Find the leading coordinator and introduce this worker."""
        try:
            found = leader(self._lease)
            if found is None or found.epoch < self._epoch:
                return None
            link = Link(socket.create_connection(parse_address(found.address), timeout=CONNECT_S))
        except (OSError, WindlassError):
            return None
        where = self._where
        link.send(**encode(replace(self._hello, generation=where.generation, step=where.step)))
        return link

    def _exchange_messages(self, link: Link) -> None:
        """Speak and hear until the line or this worker ends. That it waits is said once on each line.

        Said again, it could arrive after the assignment that answers it.
        """
        beat_s, received_s, announced = 0.0, time.monotonic(), None
        while not link.closed and not (self._ended.is_set() and self._outbox.empty()):
            wait_for([link.fileno(), self._wakeup_read], beat_s + BEAT_S - time.monotonic())
            now_s = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup_read, 1 << 12)
            for message in link.receive():
                received_s = now_s
                self._on_message(message)
            waiting = self._waiting
            self._flush(link)
            if waiting is not None and waiting is not announced:
                link.send(**encode(waiting))
                announced = waiting
            if now_s - beat_s >= BEAT_S:
                beat_s = now_s
                link.send(**encode(self._heartbeat()))
            if now_s - received_s > SILENT_S:
                return

    def _flush(self, link: Link) -> None:
        with contextlib.suppress(queue.Empty):
            while not link.closed:
                link.send(**self._outbox.get_nowait())

    def _heartbeat(self) -> Heartbeat:
        """Build a heartbeat with the steps since the last one; a time sent twice would look like two
        samples."""
        where, recent, self._busy = self._where, self._busy, deque(maxlen=REMEMBERED)
        busy = tuple(recent)
        return Heartbeat(
            generation=where.generation,
            step=where.step,
            busy_s=median(busy or (0.0,)) or None,
            total_s=math.fsum(busy),
            steps=len(busy),
            phase=where.phase,
            epoch=self._epoch,
        )

    def _on_message(self, message: dict[str, Any]) -> None:
        word = decode(message)
        if word is None or getattr(word, "epoch", 0) < self._epoch:
            return
        self._epoch = getattr(word, "epoch", self._epoch)
        if isinstance(word, Assign) and self._waiting is not None:
            self._assigned.put(word)
        elif isinstance(word, DrainAtStep):
            self._drain = word
        elif isinstance(word, AbortGeneration):
            self._abandoned = max(self._abandoned, word.generation)
            if self.abandoned:
                self.on_abandon()
        elif isinstance(word, Shutdown):
            self.dismissed = word.reason
            self._assigned.put(None)
            self.on_abandon()
