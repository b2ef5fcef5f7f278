"""Decides when replicas synchronise what, without touching a tensor.

All decisions are functions of the policy, of the step at which all replicas were last equal, and of numbers
that all replicas know. So all replicas decide alike without communicating.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from windlass.spec.sync import Sync


@dataclass(frozen=True)
class SyncSchedule:
    """When each fragment of the model is synchronised. A step here is a number of finished steps."""

    sync: Sync
    origin: int
    """The step at which all replicas held equal weights and the period began."""
    every: int
    """Steps of a period, in which each fragment is synchronised once."""

    def starts(self, step: int) -> tuple[int, ...]:
        """Return the fragments whose exchange starts after this step, evenly spread over the period."""
        if not self.sync.local or step <= self.origin:
            return ()
        gone = (step - self.origin - 1) % self.every + 1
        parts = self.sync.fragments
        return tuple(part for part in range(parts) if (part + 1) * self.every // parts == gone)

    def ends(self, step: int) -> tuple[int, ...]:
        """Return the fragments whose exchange must be complete, and is applied, after this step."""
        return self.starts(step - self.sync.delay)

    @property
    def has_sync_points(self) -> bool:
        """True if all weights are equal at some steps; with fragments or delay some always differ."""
        return self.sync.fragments == 1 and self.sync.delay == 0

    def is_sync_point(self, step: int) -> bool:
        """Return True if all replicas hold equal weights after this step."""
        if not self.sync.local or step == self.origin:
            return True
        return self.has_sync_points and bool(self.starts(step))

    def begun_at(self, step: int) -> SyncSchedule:
        """Return the same schedule with a period that begins at a sync point."""
        return replace(self, origin=step)

    def paced(self, step: int, step_s: float) -> SyncSchedule:
        """Return the schedule after an exchange of the timed policy.

        All replicas know the slowest replica's seconds per step, and so the number of steps until the next
        exchange: no step in between needs the time.
        """
        return replace(self, origin=step, every=steps_within(self.sync.seconds, step_s))


def first_schedule(sync: Sync, step: int) -> SyncSchedule:
    """Return the schedule of a policy that begins at a step where all replicas are equal.

    The duration of a step is unknown then, so the timed policy measures it after one step.
    """
    return SyncSchedule(sync, step, 1 if sync.policy == "timed" else sync.every)


def steps_within(seconds: float, step_s: float) -> int:
    """Return the number of steps that fit into `seconds`, at least one."""
    return max(1, int(seconds / step_s)) if step_s > 0 else 1


def cut_into_fragments(
    sizes: Mapping[str, int], parts: int, shared: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Divide weights into groups of nearly equal size, the same on every replica.

    The largest goes first, each to the group that has least so far. Groups may be empty when there are
    more of them than weights. Before them go weights that other processes of the replica hold too, like a
    tied matrix at both ends of a pipeline: so it falls into the first group on both, whatever else they hold.
    """
    groups: list[list[str]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for name in sorted(sizes, key=lambda name: (name not in shared, -sizes[name], name)):
        smallest = loads.index(min(loads))
        groups[smallest].append(name)
        loads[smallest] += sizes[name]
    return [tuple(group) for group in groups]


def outer_numbers(sync: Sync) -> tuple[float, float]:
    """Return rate and momentum of the outer optimizer. Plain averaging is rate 1 without momentum."""
    return (sync.outer_rate, sync.outer_momentum) if sync.policy == "diloco" else (1.0, 0.0)


def keeps_residual(before: Sync, after: Sync) -> bool:
    """Return True if the residual of compression stays valid under another policy.

    A residual of gradients is not one of weight differences, so both policies must exchange the same kind.
    """
    return before.local == after.local
