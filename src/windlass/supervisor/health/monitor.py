"""The health controller: a prober and a record for each replica, and the patches that follow."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass, field

from windlass.serve.records.golden_answers import forget_answers
from windlass.spec.rollout import HealthChecks
from windlass.store.database import Database
from windlass.supervisor.desired import DesiredService
from windlass.supervisor.health.health_policy import ReplicaHealth, decide
from windlass.supervisor.health.prober import Probed, Prober, ProbeTarget
from windlass.supervisor.state import Patch, RunningReplica, ServiceState

PROBED_PHASES = ("ready", "unhealthy")


@dataclass
class WatchedReplica:
    """A replica under watch."""

    prober: Prober
    version: str
    record: ReplicaHealth = field(default_factory=ReplicaHealth)
    why: str = ""
    is_proved: bool = False
    """Whether it has answered a prompt rightly; until then it counts as unhealthy."""
    avoided: bool = False


class HealthWatch:
    """A controller: marks replicas unhealthy or healthy again, or has them replaced.

    Of several models in one engine it probes the first, and those that clients have used: a probe must not
    load a model that no client uses. If an engine cannot hold all models (`probe_all` is false), it probes
    only the first: probes of the others would evict what clients use.
    """

    def __init__(self, health: HealthChecks, db: Database, *, probe_all: bool = True) -> None:
        self._health, self._db, self._probe_all = health, db, probe_all
        self._found: queue.SimpleQueue[Probed] = queue.SimpleQueue()
        self._watched: dict[str, WatchedReplica] = {}
        self._wrong: dict[str, str] = {}
        self._forgotten: set[str] = set()

    def take_wrong(self, version: str) -> str:
        """Return and clear what a replica of a version answered wrongly since the last call, or ""."""
        return self._wrong.pop(version, "")

    def decide(self, view: ServiceState, now: float) -> Patch:
        replicas = {each.name: each for each in view.replicas if each.phase in PROBED_PHASES}
        self._start_and_stop_probers(view.wanted, replicas)
        for outcome in view.outcomes:
            if outcome.replica in self._watched and not outcome.code:
                self._watched[outcome.replica].prober.note_loaded(outcome.version)
        while not self._found.empty():
            self._note(self._found.get_nowait(), now)
        return self._changes(replicas, now)

    def close(self) -> None:
        for watched in self._watched.values():
            watched.prober.stop()
        self._watched.clear()

    def _start_and_stop_probers(self, wanted: DesiredService, replicas: dict[str, RunningReplica]) -> None:
        """Keep one prober for every replica that should answer, and no other."""
        for name in self._watched.keys() - replicas.keys():
            self._watched.pop(name).prober.stop()
        for name in replicas.keys() - self._watched.keys():
            group = wanted.group(replicas[name].version)
            if group is not None:
                items = group.items if self._probe_all else group.items[:1]
                models = tuple((item.name, item.model) for item in items)
                self._forget(item.name for item in items)
                target = ProbeTarget(name, replicas[name].socket, models)
                prober = Prober(target, self._health, self._db, self._found)
                self._watched[name] = WatchedReplica(prober, group.version)
                prober.start()

    def _forget(self, versions: Iterable[str]) -> None:
        """Delete the answers that earlier starts recorded, once for every version, if `remember` is off."""
        for version in versions:
            if not self._health.remember and version not in self._forgotten:
                self._forgotten.add(version)
                forget_answers(self._db, version)

    def _note(self, probed: Probed, now: float) -> None:
        watched = self._watched.get(probed.replica)
        if watched is not None:
            watched.record = watched.record.after(probed.grade, self._health, now)
            watched.why = probed.why or watched.why
            watched.is_proved |= probed.grade == "right"

    def _changes(self, replicas: dict[str, RunningReplica], now: float) -> Patch:
        unhealthy: dict[str, str] = {}
        replace: dict[str, str] = {}
        healthy: set[str] = set()
        for name, watched in self._watched.items():
            treatment = decide(
                watched.record, self._health, others_ready=self._others(replicas, name), now=now
            )
            if treatment == "replace":
                replace[name] = watched.why
                if watched.record.worst == "wrong":
                    self._wrong[watched.version] = f"{name} is {watched.why}"
            elif treatment == "avoid" or not watched.is_proved:
                if replicas[name].phase == "ready":
                    unhealthy[name] = watched.why or "not probed yet"
                    watched.avoided = True
            elif watched.avoided:
                healthy.add(name)
                watched.avoided = False
        return Patch(unhealthy=unhealthy, healthy=frozenset(healthy), replace=replace)

    def _others(self, replicas: dict[str, RunningReplica], name: str) -> int:
        """Count the other ready replicas of the same version."""
        version = replicas[name].version
        return sum(
            each.phase == "ready" and each.version == version and each.name != name
            for each in replicas.values()
        )
