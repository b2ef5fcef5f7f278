"""A worker's line to whoever coordinates the run, kept by a thread of its own.

The main thread computes and waits for peers; this one finds the coordinator, tells it that the worker lives
and how far it is, and hears what it decides. A coordinator that is gone is no reason to stop: the next one is
looked for where the lease is, and told everything again.
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
LOOK_AGAIN_S = 0.2
SILENT_S = 2.0
"""Without a word from the coordinator, after which another one is looked for."""
REMEMBERED = 4096
"""Max steps between two beats of whose computing time median and total are sent."""


@dataclass(frozen=True)
class WorkerPosition:
    """How far this worker is, as its main thread last said."""

    generation: int | None = None
    step: int = 0
    phase: str = "lobby"


class CoordinatorClient:
    """The line to the coordinator. Everything but `_run` and what it calls is for the main thread."""

    def __init__(self, folder: Path, hello: ElasticHello) -> None:
        self._lease = StoreDir(folder / COORDINATOR)
        self._hello = replace(hello, role="worker", pid=os.getpid(), version=__version__)
        self._where = WorkerPosition()
        self._busy: deque[float] = deque(maxlen=REMEMBERED)
        self._lobby: WaitingForAssignment | None = None
        self._assigned: queue.Queue[Assign | None] = queue.Queue()
        self._outbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._border: DrainAtStep | None = None
        self._abandoned = 0
        self._epoch = 0
        self._ended = threading.Event()
        self.dismissed: str | None = None
        """Why this worker shall end."""
        self.on_abandon: Callable[[], None] = lambda: None
        """What to do when the generation is given up, in this thread: the main one may be waiting."""
        self._thread = threading.Thread(target=self._run, name="post", daemon=True)
        self._thread.start()

    def lobby(self, step: int, why: str) -> Assign | None:
        """Wait for the next assignment; None when this worker is dismissed."""
        generation = self._where.generation
        self._where = WorkerPosition(generation, step)
        self._border = None
        self._lobby = WaitingForAssignment(generation, step, why)
        self._ring()
        assigned = self._assigned.get()
        self._lobby = None
        if assigned is not None:
            self._where = WorkerPosition(assigned.generation, step, "forming")
        return assigned

    def at(self, step: int, phase: str, busy_s: float | None = None) -> None:
        """Say how far this worker is; told with the next beat."""
        self._where = WorkerPosition(self._where.generation, step, phase)
        if busy_s is not None:
            self._busy.append(busy_s)

    def forget_pace(self) -> None:
        """What was measured in other company does not count."""
        self._busy.clear()

    @property
    def parting(self) -> DrainAtStep | None:
        """The request to come to the lobby, or to stop, at the next border."""
        border = self._border
        return border if border is not None and border.generation == self._where.generation else None

    @property
    def abandoned(self) -> bool:
        """Whether the generation that this worker is in was given up."""
        return self._where.generation is not None and self._abandoned >= self._where.generation

    def tell(self, event: dict[str, Any]) -> None:
        """Pass an event on to whoever follows the run."""
        self._send(encode(RunEvent(event)))

    def done(self, outcome: str, error: dict[str, Any] | None = None) -> None:
        """Say the last word, and let it go out."""
        self._send(encode(WorkerDone(outcome, error)))
        self._ended.set()
        self._ring()
        self._thread.join(2 * CONNECT_S)

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox.put(message)
        self._ring()

    def _ring(self) -> None:
        """Wake the thread up."""
        with contextlib.suppress(BlockingIOError):  # it was rung often enough
            os.write(self._rope, b"!")

    def _run(self) -> None:
        while not (self._ended.is_set() and self._outbox.empty()):
            link = self._connected()
            if link is None:
                if self._ended.is_set():
                    return
                time.sleep(LOOK_AGAIN_S)
                continue
            self._converse(link)
            link.close()

    def _connected(self) -> Link | None:
        """Find whoever leads, and say who this is."""
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

    def _converse(self, link: Link) -> None:
        """Speak and hear until the line or this worker ends. That it waits is said once on each line.

        Said again, it could arrive after the assignment that answers it.
        """
        beat_s, heard_s, waited = 0.0, time.monotonic(), None
        while not link.closed and not (self._ended.is_set() and self._outbox.empty()):
            wait_for([link.fileno(), self._bell], beat_s + BEAT_S - time.monotonic())
            now_s = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                os.read(self._bell, 1 << 12)
            for message in link.receive():
                heard_s = now_s
                self._hear(message)
            lobby = self._lobby
            self._pass_on(link)
            if lobby is not None and lobby is not waited:
                link.send(**encode(lobby))
                waited = lobby
            if now_s - beat_s >= BEAT_S:
                beat_s = now_s
                link.send(**encode(self._beat()))
            if now_s - heard_s > SILENT_S:
                return

    def _pass_on(self, link: Link) -> None:
        with contextlib.suppress(queue.Empty):
            while not link.closed:
                link.send(**self._outbox.get_nowait())

    def _beat(self) -> Heartbeat:
        """Tell the steps since the last beat: a time that is told twice would look like two that agree."""
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

    def _hear(self, message: dict[str, Any]) -> None:
        word = decode(message)
        if word is None or getattr(word, "epoch", 0) < self._epoch:
            return
        self._epoch = getattr(word, "epoch", self._epoch)
        if isinstance(word, Assign) and self._lobby is not None:
            self._assigned.put(word)
        elif isinstance(word, DrainAtStep):
            self._border = word
        elif isinstance(word, AbortGeneration):
            self._abandoned = max(self._abandoned, word.generation)
            if self.abandoned:
                self.on_abandon()
        elif isinstance(word, Shutdown):
            self.dismissed = word.reason
            self._assigned.put(None)
            self.on_abandon()
