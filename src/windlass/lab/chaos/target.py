"""What a storm can lay hands on: the processes of one run and the things around them.

Only processes that descend from the run's own launchers are ever touched: a number in members.json may be
old, and by then belong to somebody else.
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
    """A process that trains, or waits to."""

    worker: str
    node: str
    pid: int
    rank: int | None

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.pid)


@dataclass(frozen=True)
class Members:
    """Who is there, as the leading coordinator last wrote it."""

    epoch: int
    generation: int
    coordinator: int
    """Its process id."""
    workers: tuple[TargetWorker, ...]


@dataclass
class ChaosTarget:
    """A run, and what of its surroundings can be broken; what is None cannot be broken here."""

    run: Path
    launchers: Callable[[], Sequence[int]]
    """Process ids of the commands that were started for this run."""
    network: Network | None = None
    disk: SmallDisk | None = None
    clocks: Clocks | None = None
    storage: FaultyStorage | None = None
    away: set[str] = field(default_factory=set)
    """Workers that a fault holds at the moment; no other fault takes them."""

    def members(self) -> Members:
        """Read who is there; before the first coordinator there is nobody."""
        try:
            return members_from(json.loads((self.run / MEMBERS).read_bytes()))
        except FileNotFoundError:
            raise NothingToHit("no coordinator has written who is there") from None

    def workers(self) -> list[TargetWorker]:
        """Return the workers that can be hit: members of the generation that live and are not hit already."""
        found = [w for w in self.members().workers if w.rank is not None and w.worker not in self.away]
        found = [worker for worker in found if self.owns(worker.pid)]
        if not found:
            raise NothingToHit("no worker is training")
        return sorted(found, key=lambda worker: worker.worker)

    def owns(self, pid: int) -> bool:
        """Whether a process lives, and was started for this run."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return not {parent.pid for parent in process.parents()}.isdisjoint(self.launchers())
        except psutil.Error:
            return False


def name_of(node: int) -> str:
    """Return how the coordinator calls a machine."""
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
