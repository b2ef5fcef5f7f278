"""The target of an experiment: the processes of one run and their environment.

Only descendants of the run's own launchers are ever touched: a process id in members.json may be stale and
reused by another program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from windlass.lab.chaos.clock import Clocks
from windlass.lab.chaos.disk import SmallDisk
from windlass.lab.chaos.injected_fault import NothingToHit
from windlass.lab.chaos.network import Network
from windlass.lab.chaos.storage import FaultyStorage
from windlass.spec.protocol.elastic import MEMBERS


@dataclass(frozen=True)
class TargetWorker:
    """A process that trains, or a spare."""

    worker: str
    node: str
    pid: int
    rank: int | None

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.pid)


@dataclass(frozen=True)
class Members:
    """The members as the leading coordinator last wrote them."""

    epoch: int
    generation: int
    coordinator: int
    """Process id of the coordinator."""
    workers: tuple[TargetWorker, ...]


@dataclass
class ChaosTarget:
    """A run and its environment; parts that are None cannot fail here."""

    run: Path
    launchers: Callable[[], Sequence[int]]
    """Returns the process ids of the run's launchers."""
    network: Network | None = None
    disk: SmallDisk | None = None
    clocks: Clocks | None = None
    storage: FaultyStorage | None = None
    away: set[str] = field(default_factory=set)
    """Workers held by a current fault; no other fault takes them."""

    def members(self) -> Members:
        """Read the members; raises before the first coordinator has written them."""
        try:
            return members_from(json.loads((self.run / MEMBERS).read_bytes()))
        except FileNotFoundError:
            raise NothingToHit("no coordinator has written the members yet") from None

    def workers(self) -> list[TargetWorker]:
        """Return the possible victims: live members of the generation without a current fault."""
        found = [w for w in self.members().workers if w.rank is not None and w.worker not in self.away]
        found = [worker for worker in found if self.owns(worker.pid)]
        if not found:
            raise NothingToHit("no worker is training")
        return sorted(found, key=lambda worker: worker.worker)

    def owns(self, pid: int) -> bool:
        """Whether a process is alive and was started for this run."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return not {parent.pid for parent in process.parents()}.isdisjoint(self.launchers())
        except psutil.Error:
            return False


def name_of(node: int) -> str:
    """Return the coordinator's name for a node."""
    return f"node{node}"


def number_of(node: str) -> int:
    return int(node.removeprefix("node"))


def members_from(body: dict[str, object]) -> Members:
    """Read members.json as the coordinator writes it."""
    coordinator, workers = body["coordinator"], body["workers"]
    assert isinstance(coordinator, dict)
    assert isinstance(workers, list)
    return Members(
        epoch=int(str(body["epoch"])),
        generation=int(str(body["generation"] or 0)),
        coordinator=int(coordinator["pid"]),
        workers=tuple(TargetWorker(w["worker"], w["node"], int(w["pid"]), w["rank"]) for w in workers),
    )
