"""The launcher of one machine in an elastic run: keeps a nursery and coordinators alive, obeys who leads.

    find the leader by its lease -> say hello -> start and kill workers as told, report their ends -> over

It decides nothing about the run. When the leader is gone it looks for the next one; meanwhile its workers
train on. How the run ended it hears from the leader, or reads in the run's directory.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.cluster.launch.launcher import interrupts
from windlass.cluster.launch.local_process import LocalProcess, error_of, tail_of
from windlass.elastic.worker_pool import WorkerPool
from windlass.spec.errors import ProcessFailed, StoreFailed
from windlass.spec.processes import ELASTIC_COORDINATOR, FORK_SERVER
from windlass.spec.protocol.elastic import (
    COORDINATOR,
    OVER,
    ElasticHello,
    Heartbeat,
    KillWorker,
    RunEnded,
    RunEvent,
    Start,
    StopRequest,
    ToCoordinator,
    decode,
    encode,
    holder_of,
)
from windlass.spec.protocol.link import Link, parse_address, wait_for
from windlass.store.lease import leader, vacate
from windlass.store.store_dir import StoreDir

LOOK_EVERY_S = 0.1
CONNECT_S = 1.0
RETRY_S = 0.2
SILENT_S = 2.0
"""Without a beat of the leader, after which another one is looked for."""
GRACE_S = 5.0
"""For workers to end once the run is over."""
CANDIDATES = 2
"""Coordinators on each machine: when the one that leads dies, another is there already."""
MAX_CANDIDATE_DEATHS = 10
"""In a row, of a coordinator that lives less than EARLY_S."""
EARLY_S = 2.0

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class AgentSite:
    """Where an agent is, and what it starts there."""

    folder: Path
    node: str
    host: str
    nursery: str = FORK_SERVER
    coordinator: str = ELASTIC_COORDINATOR
    entry: str = ""
    """MODULE:FUNCTION that a worker is; the nursery knows the usual one."""
    most: int = 0

    @property
    def arguments(self) -> list[str]:
        return [str(self.folder), "--node", self.node, "--host", self.host]


class Agent:
    """One machine's part of a run."""

    def __init__(
        self, site: AgentSite, tell: Tell, *, leaves: bool = False, leave_after_s: float | None = None
    ) -> None:
        """Asked to end, an agent asks for the end of the run; one that `leaves` goes alone.

        One that leaves after a while goes with the run if that ends meanwhile.
        """
        self._site, self._tell = site, tell
        self._leave_after_s = 0.0 if leaves else leave_after_s
        self._asked_s = 0.0
        self._lease = StoreDir(site.folder / COORDINATOR)
        self._link: Link | None = None
        self._epoch = 0
        self._heard_s = self._tried_s = 0.0
        self._asked = self._passed_on = 0
        self._over: RunEnded | None = None

    def run(self) -> bool:
        """Take part until the run is over. Return False when it was stopped; raise how it failed."""
        site = self._site
        entry = ["--entry", site.entry] if site.entry else []
        nursing = WorkerPool(site.nursery, [*site.arguments, *entry], site.folder, site.node)
        candidates = [CoordinatorProcess(site) for _ in range(CANDIDATES)]
        try:
            with interrupts(self._interrupt):
                while self._over is None and self._asked < 3 and not self.left:
                    self._step(nursing, candidates)
        finally:
            if self._link is not None:
                self._link.close()
            nursing.end(GRACE_S)
            for candidate in candidates:
                candidate.end()
        return self._outcome()

    @property
    def left(self) -> bool:
        """Whether it goes before the run is over."""
        if self._leave_after_s is None or not self._asked or self._over is not None:
            return False
        return time.monotonic() - self._asked_s >= self._leave_after_s

    def _step(self, nursing: WorkerPool, candidates: list[CoordinatorProcess]) -> None:
        link = self._link
        wait_for([*nursing.files(), *([link.fileno()] if link is not None else [])], LOOK_EVERY_S)
        now_s = time.monotonic()
        for candidate in candidates:
            candidate.tend(now_s)
        for event in nursing.hear(now_s):
            self._say(event)
        if self._link is None:
            self._look(nursing, now_s)
        else:
            self._converse(self._link, nursing, now_s)

    def _look(self, nursing: WorkerPool, now_s: float) -> None:
        """Find out how the run ended, or who leads it."""
        if now_s - self._tried_s < RETRY_S:
            return
        self._tried_s = now_s
        file = self._site.folder / OVER
        if file.exists():
            told = json.loads(file.read_bytes())
            self._over = RunEnded(self._epoch, told["outcome"], told["error"])
            return
        try:
            found = leader(self._lease)
            if found is None or found.epoch < self._epoch:
                return
            connection = socket.create_connection(parse_address(found.address), timeout=CONNECT_S)
        except (OSError, StoreFailed):
            return
        self._link, self._heard_s, self._passed_on = Link(connection), time.monotonic(), 0
        site = self._site
        self._say(ElasticHello("agent", site.node, host=site.host, most=site.most, workers=nursing.workers))

    def _converse(self, link: Link, nursing: WorkerPool, now_s: float) -> None:
        for message in link.receive():
            self._heard_s = now_s
            self._obey(decode(message), nursing)
        if self._passed_on < self._asked and self._leave_after_s is None:
            self._passed_on += 1
            self._say(StopRequest())
        if link.closed or now_s - self._heard_s > SILENT_S:
            link.close()
            self._link = None

    def _obey(self, message: object, nursing: WorkerPool) -> None:
        if (
            not isinstance(message, Start | KillWorker | RunEvent | RunEnded | Heartbeat)
            or message.epoch < self._epoch
        ):
            return
        self._epoch = message.epoch
        if isinstance(message, Start):
            nursing.start(message.worker)
        elif isinstance(message, KillWorker):
            nursing.kill(message.worker)
        elif isinstance(message, RunEvent):
            self._tell(message.event)
        elif isinstance(message, RunEnded):
            self._over = message

    def _say(self, message: ToCoordinator) -> None:
        """To whoever leads; the next leader learns what is missed here from the hello."""
        if self._link is not None:
            self._link.send(**encode(message))

    def _interrupt(self) -> None:
        self._asked += 1
        self._asked_s = time.monotonic()

    def _outcome(self) -> bool:
        if self._over is None or self._over.outcome == "stopped":
            return False
        if self._over.outcome == "failed":
            raise error_of(self._over.error or {})
        return True


class CoordinatorProcess:
    """This machine's coordinator process, started again whenever it dies."""

    def __init__(self, site: AgentSite) -> None:
        self._site, self._log = site, site.folder / "logs" / f"coordinator-{site.node}.log"
        self._deaths = 0
        self._again_s: float | None = None
        self._began_s = time.monotonic()
        self._process = self._start()

    def tend(self, now_s: float) -> None:
        """Start it again when it died; if it led, nobody needs to wait for another sign of it."""
        if self._again_s is not None:
            if now_s >= self._again_s:
                self._again_s, self._began_s = None, now_s
                self._process = self._start()
        elif self._process.look() not in (None, 0):
            self._process.output.close()
            with contextlib.suppress(StoreFailed):
                vacate(
                    StoreDir(self._site.folder / COORDINATOR), holder_of(self._site.node, self._process.pid)
                )
            self._count_death(now_s)

    def _count_death(self, now_s: float) -> None:
        self._again_s = now_s + RETRY_S
        self._deaths = self._deaths + 1 if now_s - self._began_s < EARLY_S else 1
        if self._deaths >= MAX_CANDIDATE_DEATHS:
            raise ProcessFailed("the coordinator dies again and again", hint=tail_of(self._log))

    def end(self) -> None:
        if self._again_s is None:
            self._process.stop(1.0)
            self._process.output.close()

    def _start(self) -> LocalProcess:
        return LocalProcess("coordinator", self._site.coordinator, self._site.arguments, self._log)
