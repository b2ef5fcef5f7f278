"""The health policy: when a replica is unhealthy, and when it is healthy again. Pure.

One bad answer proves nothing: machines pause. `bad` of the last `of` answers make a replica unhealthy, and
only `good` right ones in a row make it healthy again, so a borderline replica does not flap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.rollout import HealthChecks

Grade = Literal["right", "wrong", "slow", "silent"]


@dataclass(frozen=True)
class ReplicaHealth:
    """The grades of a replica's last answers, newest last, and since when it is unhealthy."""

    grades: tuple[Grade, ...] = ()
    unhealthy_since: float | None = None

    @property
    def is_healthy(self) -> bool:
        return self.unhealthy_since is None

    @property
    def worst(self) -> Grade:
        """The worst of the last grades: wrong is worse than no answer, and that is worse than a late one."""
        return next((grade for grade in WORST_FIRST if grade in self.grades), "right")

    def after(self, grade: Grade, health: HealthChecks, now: float) -> ReplicaHealth:
        """Return the record with one more answer."""
        grades = (*self.grades, grade)[-max(health.of, health.good) :]
        if self.is_healthy:
            bad = sum(each != "right" for each in grades[-health.of :])
            return ReplicaHealth(grades, now if bad >= health.bad else None)
        healed = len(grades) >= health.good and all(each == "right" for each in grades[-health.good :])
        return ReplicaHealth((), None) if healed else replace(self, grades=grades)


WORST_FIRST: tuple[Grade, ...] = ("wrong", "silent", "slow")

Treatment = Literal["use", "avoid", "replace"]


def decide(record: ReplicaHealth, health: HealthChecks, *, others_ready: int, now: float) -> Treatment:
    """Return how to treat a replica with this record.

    A replica that answers wrongly is replaced, even if it is the last: no answer is better than a wrong
    one. A slow one stays in use while no other is ready, since its clients would be worse off without it.
    """
    if record.unhealthy_since is None:
        return "use"
    if record.worst in ("wrong", "silent"):
        return "replace"
    if not others_ready:
        return "use"
    return "replace" if now - record.unhealthy_since >= health.restart_after else "avoid"
