"""The agent of one machine in an elastic run: keeps a fork server and coordinators alive, obeys the leader.

    find the leader by its lease -> say hello -> start and kill workers on request, report exits -> run ended

The agent decides nothing about the run. When the leader is gone, the agent looks for the next one while its
workers keep training. It learns how the run ended from the leader, or from the run's directory.
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
"""Without a heartbeat of the leader for so long, the agent looks for another leader."""
GRACE_S = 5.0
"""Time for workers to exit once the run is over."""
CANDIDATES = 2
"""Coordinator processes on each machine: when the leader dies, another candidate is already running."""
MAX_CANDIDATE_DEATHS = 10
"""Consecutive exits of a coordinator within EARLY_S of its start, after which the agent fails."""
EARLY_S = 2.0

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class AgentSite:
    """The machine of an agent, and the processes it starts there."""

    folder: Path
    node: str
    host: str
    fork_server: str = FORK_SERVER
    coordinator: str = ELASTIC_COORDINATOR
    entry: str = ""
    """MODULE:FUNCTION that a worker runs; empty for the fork server's default."""
    max_workers: int = 0
    """Limit of workers on this machine; 0 for none."""

    @property
    def arguments(self) -> list[str]:
        return [str(self.folder), "--node", self.node, "--host", self.host]


class Agent:
    """One machine's part of a run."""

    def __init__(
        self, site: AgentSite, tell: Tell, *, leaves: bool = False, leave_after_s: float | None = None
    ) -> None:
        """When interrupted, an agent asks the leader to stop the run; with `leaves`, it leaves at once.

        With `leave_after_s` it leaves after that time, unless the run has ended before.
        """
        self._site, self._tell = site, tell
        self._leave_after_s = 0.0 if leaves else leave_after_s
        self._interrupted_s = 0.0
        self._lease = StoreDir(site.folder / COORDINATOR)
        self._link: Link | None = None
        self._epoch = 0
        self._last_seen_s = self._tried_s = 0.0
        self._interruptions = self._passed_on = 0
        self._over: RunEnded | None = None

    def run(self) -> bool:
        """Take part until the run is over. Return False if it was stopped; raise the error if it failed."""
        site = self._site
        entry = ["--entry", site.entry] if site.entry else []
        pool = WorkerPool(site.fork_server, [*site.arguments, *entry], site.folder, site.node)
        candidates = [CoordinatorProcess(site) for _ in range(CANDIDATES)]
        try:
            with interrupts(self._interrupt):
                while self._over is None and self._interruptions < 3 and not self.left:
                    self._step(pool, candidates)
        finally:
            if self._link is not None:
                self._link.close()
            pool.end(GRACE_S)
            for candidate in candidates:
                candidate.end()
        return self._outcome()

    @property
    def left(self) -> bool:
        """Whether the agent leaves before the run is over."""
        if self._leave_after_s is None or not self._interruptions or self._over is not None:
            return False
        return time.monotonic() - self._interrupted_s >= self._leave_after_s

    def _step(self, pool: WorkerPool, candidates: list[CoordinatorProcess]) -> None:
        link = self._link
        wait_for([*pool.files(), *([link.fileno()] if link is not None else [])], LOOK_EVERY_S)
        now_s = time.monotonic()
        for candidate in candidates:
            candidate.restart_if_dead(now_s)
        for event in pool.poll_events(now_s):
            self._send(event)
        if self._link is None:
            self._find_leader(pool, now_s)
        else:
            self._exchange(self._link, pool, now_s)

    def _find_leader(self, pool: WorkerPool, now_s: float) -> None:
        """Read how the run ended, or connect to the leader."""
        if now_s - self._tried_s < RETRY_S:
            return
        self._tried_s = now_s
        file = self._site.folder / OVER
        if file.exists():
            ending = json.loads(file.read_bytes())
            self._over = RunEnded(self._epoch, ending["outcome"], ending["error"])
            return
        try:
            found = leader(self._lease)
            if found is None or found.epoch < self._epoch:
                return
            connection = socket.create_connection(parse_address(found.address), timeout=CONNECT_S)
        except (OSError, StoreFailed):
            return
        self._link, self._last_seen_s, self._passed_on = Link(connection), time.monotonic(), 0
        site = self._site
        self._send(
            ElasticHello(
                "agent", site.node, host=site.host, max_workers=site.max_workers, workers=pool.workers
            )
        )

    def _exchange(self, link: Link, pool: WorkerPool, now_s: float) -> None:
        for message in link.receive():
            self._last_seen_s = now_s
            self._apply(decode(message), pool)
        if self._passed_on < self._interruptions and self._leave_after_s is None:
            self._passed_on += 1
            self._send(StopRequest())
        if link.closed or now_s - self._last_seen_s > SILENT_S:
            link.close()
            self._link = None

    def _apply(self, message: object, pool: WorkerPool) -> None:
        if (
            not isinstance(message, Start | KillWorker | RunEvent | RunEnded | Heartbeat)
            or message.epoch < self._epoch
        ):
            return
        self._epoch = message.epoch
        if isinstance(message, Start):
            pool.start(message.worker)
        elif isinstance(message, KillWorker):
            pool.kill(message.worker)
        elif isinstance(message, RunEvent):
            self._tell(message.event)
        elif isinstance(message, RunEnded):
            self._over = message

    def _send(self, message: ToCoordinator) -> None:
        """Send to the leader, if connected; the hello tells the next leader what is missed here."""
        if self._link is not None:
            self._link.send(**encode(message))

    def _interrupt(self) -> None:
        self._interruptions += 1
        self._interrupted_s = time.monotonic()

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

    def restart_if_dead(self, now_s: float) -> None:
        """Restart the process if it died, and vacate its lease: no candidate waits until it expires."""
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
            raise ProcessFailed(
                f"the coordinator exited {self._deaths} times in a row soon after its start",
                hint=tail_of(self._log),
            )

    def end(self) -> None:
        if self._again_s is None:
            self._process.stop(1.0)
            self._process.output.close()

    def _start(self) -> LocalProcess:
        return LocalProcess("coordinator", self._site.coordinator, self._site.arguments, self._log)
