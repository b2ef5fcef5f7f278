"""Decides when replicas exchange what, without touching a tensor.

All decisions are functions of the policy, of the step at which everybody was last equal, and of numbers
that everybody agreed on. So all replicas decide alike, without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from windlass.spec.sync import Sync


@dataclass(frozen=True)
class SyncSchedule:
    """When each fragment of the model is exchanged. A step here is a number of finished steps."""

    sync: Sync
    origin: int
    """The step at which all replicas held equal weights and the period began."""
    every: int
    """Steps of a period, in which each fragment is exchanged once."""

    def starts(self, step: int) -> tuple[int, ...]:
        """Return the fragments whose exchange starts after this step, evenly spread over the period."""
        if not self.sync.local or step <= self.origin:
            return ()
        gone = (step - self.origin - 1) % self.every + 1
        parts = self.sync.fragments
        return tuple(part for part in range(parts) if (part + 1) * self.every // parts == gone)

    def ends(self, step: int) -> tuple[int, ...]:
        """Return the fragments whose exchange must be over, and is applied, after this step."""
        return self.starts(step - self.sync.delay)

    @property
    def has_borders(self) -> bool:
        """Whether all weights are equal now and then; with fragments or delay some are always apart."""
        return self.sync.fragments == 1 and self.sync.delay == 0

    def border(self, step: int) -> bool:
        """Return whether all replicas hold equal weights after this step."""
        if not self.sync.local or step == self.origin:
            return True
        return self.has_borders and bool(self.starts(step))

    def begun_at(self, step: int) -> SyncSchedule:
        """Return the same schedule with a period that begins at a step where all are equal."""
        return replace(self, origin=step)

    def paced(self, step: int, step_s: float) -> SyncSchedule:
        """Return the schedule after an exchange of the timed policy.

        Everybody knows the slowest replica's seconds per step, and so the number of steps until the next
        exchange: no step in between has to ask for the time.
        """
        return replace(self, origin=step, every=steps_within(self.sync.seconds, step_s))


def first_schedule(sync: Sync, step: int) -> SyncSchedule:
    """Return the schedule of a policy that begins at a step where all replicas are equal.

    How long a step takes is unknown then, so the timed policy looks after one step.
    """
    return SyncSchedule(sync, step, 1 if sync.policy == "timed" else sync.every)


def steps_within(seconds: float, step_s: float) -> int:
    """Return how many steps fit into some time: at least one."""
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
        least = loads.index(min(loads))
        groups[least].append(name)
        loads[least] += sizes[name]
    return [tuple(group) for group in groups]


def outer_numbers(sync: Sync) -> tuple[float, float]:
    """Return rate and momentum of the outer optimizer. Plain averaging is rate 1 without momentum."""
    return (sync.outer_rate, sync.outer_momentum) if sync.policy == "diloco" else (1.0, 0.0)


def keeps_residual(before: Sync, after: Sync) -> bool:
    """Return whether what compression left out still means something under another policy.

    Gradients and differences of weights are not the same thing, so it does between two policies that
    both exchange at every step, or both do not.
    """
    return before.local == after.local
