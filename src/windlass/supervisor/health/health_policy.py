"""When a replica is unwell, and when it is well again.

One bad answer proves nothing: machines pause. `bad` of the last `of` answers make a replica unwell, and
only `good` good ones in a row make it well, so a replica on the edge changes seldom and never back and
forth with every answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.rollout import HealthChecks

Grade = Literal["right", "wrong", "slow", "silent"]


@dataclass(frozen=True)
class ReplicaHealth:
    """What a replica answered lately, newest last, and whether it counts as unwell."""

    grades: tuple[Grade, ...] = ()
    unwell_since: float | None = None

    @property
    def is_well(self) -> bool:
        return self.unwell_since is None

    @property
    def worst(self) -> Grade:
        """The gravest of the last answers: a wrong answer is worse than none, and none than a late one."""
        return next((grade for grade in GRAVEST_FIRST if grade in self.grades), "right")

    def after(self, grade: Grade, health: HealthChecks, now: float) -> ReplicaHealth:
        """Return the record with one more answer."""
        grades = (*self.grades, grade)[-max(health.of, health.good) :]
        if self.is_well:
            bad = sum(each != "right" for each in grades[-health.of :])
            return ReplicaHealth(grades, now if bad >= health.bad else None)
        healed = len(grades) >= health.good and all(each == "right" for each in grades[-health.good :])
        return ReplicaHealth((), None) if healed else replace(self, grades=grades)


GRAVEST_FIRST: tuple[Grade, ...] = ("wrong", "silent", "slow")

Fate = Literal["use", "avoid", "replace"]


def decide(record: ReplicaHealth, health: HealthChecks, *, others_ready: int, now: float) -> Fate:
    """Say what is to become of a replica with such a record.

    Who answers wrongly is ended, even if it is the last: no answer is better than a wrong one. Who answers
    slowly stays while no other is ready, since all its clients would be worse off without it.
    """
    if record.unwell_since is None:
        return "use"
    if record.worst in ("wrong", "silent"):
        return "replace"
    if not others_ready:
        return "use"
    return "replace" if now - record.unwell_since >= health.restart_after else "avoid"
