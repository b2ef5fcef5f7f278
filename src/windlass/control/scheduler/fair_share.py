"""What a tenant has beside what it should have: weighted dominant resource fairness that remembers.

A tenant's dominant share is the largest part that it holds of any one resource of the fleet (Ghodsi et al.,
"Dominant Resource Fairness", NSDI 2011): who asks for GPUs is measured by GPUs, who asks for memory by
memory. A tenant's standing is

    (dominant share now + the average of it lately) / weight

and whoever stands lowest goes first. "Lately" fades by half every HALF_LIFE_S, so that a tenant which had
the fleet to itself this morning yields to others for a while, and not for ever. Among tenants that always
want more, shares become proportional to weights.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from windlass.control.scheduler.capacity import SLACK, Columns, Vector
from windlass.control.scheduler.snapshot import PendingJob, RunningJob, SchedulableNode, Snapshot, TenantQuota

HALF_LIFE_S = 4 * 3600.0
FADE_S = HALF_LIFE_S / math.log(2)
"""Usage that fades at this rate is, divided by it, the average share of late."""
NOTHING: Vector = (0.0, 0.0, 0.0)
_TENANT = attrgetter("ask.tenant")


def fade(used: float, share: float, passed_s: float) -> float:
    """Return what a tenant used of late, `passed_s` after it was `used`, holding `share` all the while."""
    left = math.exp(-passed_s / FADE_S)
    return used * left + share * FADE_S * (1.0 - left)


def dominant_shares(view: Snapshot) -> dict[str, float]:
    """Return what each tenant holds now, for the bookkeeping by `fade`."""
    whole = whole_of(view.machines)
    held = held_by_tenant(view.placed)
    return {tenant: dominant(room, whole) for tenant, room in held.items()}


def whole_of(machines: Sequence[SchedulableNode]) -> Vector:
    if isinstance(machines, Columns):
        return machines.sum[0], machines.sum[1], machines.sum[2]
    rooms = [machine.total for machine in machines]
    return (
        sum(room.cores for room in rooms),
        float(sum(room.memory_bytes for room in rooms)),
        float(sum(room.gpus for room in rooms)),
    )


def held_by_tenant(placed: Iterable[RunningJob]) -> dict[str, Vector]:
    """Add up what tenants hold; exactly, in whatever order it comes, because members are whole numbers."""
    members: dict[tuple[str, float, int, int], int] = defaultdict(int)
    for each in placed:
        members[each.ask.kind] += each.members
    held: dict[str, Vector] = {}
    for kind in sorted(members):
        tenant, cores, memory_bytes, gpus = kind
        held[tenant] = plus(held.get(tenant, NOTHING), times((cores, memory_bytes, gpus), members[kind]))
    return held


def dominant(room: Vector, whole: Vector) -> float:
    """Return the largest part of any resource. What the fleet has nothing of counts for nothing."""
    return max(part / all_ if all_ > 0 else 0.0 for part, all_ in zip(room, whole, strict=True))


def times(room: Vector, number: float) -> Vector:
    return room[0] * number, room[1] * number, room[2] * number


def plus(one: Vector, other: Vector) -> Vector:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class TenantUsage:
    """One tenant while a decision is made: what it may have, what it holds, and what it was promised."""

    def __init__(self, share: TenantQuota, whole: Vector) -> None:
        self.share, self._whole = share, whole
        self.held: Vector = NOTHING
        self.leaving: Vector = NOTHING
        """The part of it that it was asked to give back, and still has."""
        self.jobs = self.jobs_leaving = 0
        self.fair = 0.0
        """The part of the fleet that its weight gives it among those who want or have something."""
        self.blocked_by: str | None = None
        """A job that has waited too long for the quota; what came later waits behind it."""

    def hold(self, need: Vector, members: int) -> None:
        self.held = plus(self.held, times(need, members))
        self.jobs += 1

    def leave(self, need: Vector, members: int, jobs: int) -> None:
        self.leaving = plus(self.leaving, times(need, members))
        self.jobs_leaving += jobs

    @property
    def now(self) -> float:
        """Its part of the fleet, without what it gives back."""
        return dominant(plus(self.held, times(self.leaving, -1)), self._whole)

    def part(self, need: Vector, members: int) -> float:
        """Return which part of the fleet a gang is."""
        return dominant(times(need, members), self._whole)

    @property
    def standing(self) -> float:
        return (self.now + self.share.used / FADE_S) / self.share.weight

    def room_for(self, need: Vector, *, without_leaving: bool = False) -> float:
        """Return how many members the quota lets it have beside what it holds."""
        held = plus(self.held, times(self.leaving, -1)) if without_leaving else self.held
        return self._most(need, held)

    def most_of(self, need: Vector) -> float:
        """Return how many members the quota would let it have if it held nothing."""
        return self._most(need, NOTHING)

    def may_begin(self, *, without_leaving: bool = False) -> bool:
        """Tell whether one more of its jobs may run."""
        jobs = self.jobs - (self.jobs_leaving if without_leaving else 0)
        return self.share.max_jobs is None or jobs < self.share.max_jobs

    def _most(self, need: Vector, held: Vector) -> float:
        quota = self.share.quota
        most = math.inf
        for limit, has, each in zip(quota.limits, held, need, strict=True):
            if limit is not None and each > 0:
                most = min(most, math.floor((limit - has + SLACK) / each))
        return max(0.0, most)


def accounts_of(
    waiting: Sequence[PendingJob],
    placed: Sequence[RunningJob],
    shares: Mapping[str, TenantQuota],
    whole: Vector,
) -> dict[str, TenantUsage]:
    """Open an account for every tenant that wants or has something."""
    jobs = Counter(map(_TENANT, placed))
    tenants = sorted({*jobs, *[ask.tenant for ask in waiting]})
    accounts = {tenant: TenantUsage(shares.get(tenant) or TenantQuota(tenant), whole) for tenant in tenants}
    weights = sum(account.share.weight for account in accounts.values())
    for account in accounts.values():
        account.fair = account.share.weight / weights
    for tenant, room in held_by_tenant(placed).items():
        accounts[tenant].held, accounts[tenant].jobs = room, jobs[tenant]
    return accounts


def priority_of(ask: PendingJob, share: TenantQuota) -> int:
    most = share.max_priority
    return ask.priority if most is None else min(ask.priority, most)
