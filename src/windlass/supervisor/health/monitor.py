"""Watches all replicas of a service: a prober for each, a record for each, and what follows from it."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass, field

from windlass.serve.records.golden_answers import forget_answers
from windlass.spec.rollout import HealthChecks
from windlass.store.database import Database
from windlass.supervisor.desired import DesiredService
from windlass.supervisor.health.health_policy import ReplicaHealth, decide
from windlass.supervisor.health.prober import Probed, Prober, Subject
from windlass.supervisor.state import Patch, RunningReplica, ServiceState

ASKED = ("ready", "unwell")


@dataclass
class Patient:
    """A replica under watch."""

    prober: Prober
    version: str
    record: ReplicaHealth = field(default_factory=ReplicaHealth)
    why: str = ""
    is_proved: bool = False
    """Whether it has answered a question rightly; until then others are asked before it."""
    avoided: bool = False


class HealthWatch:
    """A decider: makes replicas unwell, well again, or has them replaced.

    Of several models in one engine, the first is asked about, and those that clients have used: a question
    must not load a model that nobody wants. Where an engine may not hold all of them (`asks_all` is false),
    only the first is: questions about the others would push out what clients use.
    """

    def __init__(self, health: HealthChecks, db: Database, *, asks_all: bool = True) -> None:
        self._health, self._db, self._asks_all = health, db, asks_all
        self._found: queue.SimpleQueue[Probed] = queue.SimpleQueue()
        self._patients: dict[str, Patient] = {}
        self._wrong: dict[str, str] = {}
        self._forgotten: set[str] = set()

    def take_wrong(self, version: str) -> str:
        """Return what a replica of a version answered wrongly since this was last asked, if any did."""
        return self._wrong.pop(version, "")

    def decide(self, view: ServiceState, now: float) -> Patch:
        asked = {each.name: each for each in view.replicas if each.phase in ASKED}
        self._welcome(view.wanted, asked)
        for outcome in view.outcomes:
            if outcome.replica in self._patients and not outcome.code:
                self._patients[outcome.replica].prober.note_loaded(outcome.version)
        while not self._found.empty():
            self._note(self._found.get_nowait(), now)
        return self._changes(asked, now)

    def close(self) -> None:
        for patient in self._patients.values():
            patient.prober.stop()
        self._patients.clear()

    def _welcome(self, wanted: DesiredService, asked: dict[str, RunningReplica]) -> None:
        """Have a prober for every replica that should answer, and for no other."""
        for name in self._patients.keys() - asked.keys():
            self._patients.pop(name).prober.stop()
        for name in asked.keys() - self._patients.keys():
            group = wanted.group(asked[name].version)
            if group is not None:
                items = group.items if self._asks_all else group.items[:1]
                models = tuple((item.name, item.model) for item in items)
                self._forget(item.name for item in items)
                subject = Subject(name, asked[name].socket, models)
                prober = Prober(subject, self._health, self._db, self._found)
                self._patients[name] = Patient(prober, group.version)
                prober.start()

    def _forget(self, versions: Iterable[str]) -> None:
        """Drop what earlier starts recorded, once for every version, if that is asked for."""
        for version in versions:
            if not self._health.remember and version not in self._forgotten:
                self._forgotten.add(version)
                forget_answers(self._db, version)

    def _note(self, probed: Probed, now: float) -> None:
        patient = self._patients.get(probed.replica)
        if patient is not None:
            patient.record = patient.record.after(probed.grade, self._health, now)
            patient.why = probed.why or patient.why
            patient.is_proved |= probed.grade == "right"

    def _changes(self, asked: dict[str, RunningReplica], now: float) -> Patch:
        unwell: dict[str, str] = {}
        replace: dict[str, str] = {}
        well: set[str] = set()
        for name, patient in self._patients.items():
            fate = decide(patient.record, self._health, others_ready=self._others(asked, name), now=now)
            if fate == "replace":
                replace[name] = patient.why
                if patient.record.worst == "wrong":
                    self._wrong[patient.version] = f"{name} is {patient.why}"
            elif fate == "avoid" or not patient.is_proved:
                if asked[name].phase == "ready":
                    unwell[name] = patient.why or "not asked yet"
                    patient.avoided = True
            elif patient.avoided:
                well.add(name)
                patient.avoided = False
        return Patch(unwell=unwell, well=frozenset(well), replace=replace)

    def _others(self, asked: dict[str, RunningReplica], name: str) -> int:
        """Count the ready replicas of the same version beside one."""
        version = asked[name].version
        return sum(
            each.phase == "ready" and each.version == version and each.name != name for each in asked.values()
        )
