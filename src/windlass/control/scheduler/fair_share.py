"""Fair share over tenants: weighted dominant resource fairness with decaying history.

A tenant's dominant share is the largest part that it holds of any one resource of the fleet (Ghodsi et al.,
"Dominant Resource Fairness", NSDI 2011): a tenant that requests GPUs is measured by GPUs, one that requests
memory by memory. A tenant's weighted usage is

    (current dominant share + its recent average) / weight

and the tenant with the lowest goes first. The recent average decays by half every HALF_LIFE_S, so that a
tenant that had the fleet to itself this morning yields to others for a while, and not for ever. Among tenants
that always have pending jobs, shares become proportional to weights.
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
"""The decay constant: usage divided by it is the recent average share."""
NOTHING: Vector = (0.0, 0.0, 0.0)
_TENANT = attrgetter("job.tenant")


def fade(used: float, share: float, passed_s: float) -> float:
    """Return the decayed usage, `passed_s` after it was `used`, for a tenant that held `share` meanwhile."""
    left = math.exp(-passed_s / FADE_S)
    return used * left + share * FADE_S * (1.0 - left)


def dominant_shares(snapshot: Snapshot) -> dict[str, float]:
    """Return each tenant's current dominant share, as input of `fade`."""
    whole = total_resources(snapshot.machines)
    held = held_by_tenant(snapshot.placed)
    return {tenant: dominant(room, whole) for tenant, room in held.items()}


def total_resources(machines: Sequence[SchedulableNode]) -> Vector:
    if isinstance(machines, Columns):
        return machines.sum[0], machines.sum[1], machines.sum[2]
    rooms = [machine.total for machine in machines]
    return (
        sum(room.cores for room in rooms),
        float(sum(room.memory_bytes for room in rooms)),
        float(sum(room.gpus for room in rooms)),
    )


def held_by_tenant(placed: Iterable[RunningJob]) -> dict[str, Vector]:
    """Sum what tenants hold; exact in any order, because members are integers."""
    members: dict[tuple[str, float, int, int], int] = defaultdict(int)
    for each in placed:
        members[each.job.kind] += each.members
    held: dict[str, Vector] = {}
    for kind in sorted(members):
        tenant, cores, memory_bytes, gpus = kind
        held[tenant] = plus(held.get(tenant, NOTHING), times((cores, memory_bytes, gpus), members[kind]))
    return held


def dominant(room: Vector, whole: Vector) -> float:
    """Return the largest fraction of any resource. Resources that the fleet lacks do not count."""
    return max(part / all_ if all_ > 0 else 0.0 for part, all_ in zip(room, whole, strict=True))


def times(room: Vector, number: float) -> Vector:
    return room[0] * number, room[1] * number, room[2] * number


def plus(one: Vector, other: Vector) -> Vector:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class TenantUsage:
    """One tenant during a cycle: its quota, what it holds, and what it was promised."""

    def __init__(self, share: TenantQuota, whole: Vector) -> None:
        self.share, self._whole = share, whole
        self.held: Vector = NOTHING
        self.leaving: Vector = NOTHING
        """The part of `held` that is draining."""
        self.jobs = self.jobs_leaving = 0
        self.fair = 0.0
        """Its fair share: its weight divided by the weights of all tenants with pending or running jobs."""
        self.blocked_by: str | None = None
        """A job that has waited too long for the quota; the tenant's later jobs wait behind it."""

    def hold(self, need: Vector, members: int) -> None:
        self.held = plus(self.held, times(need, members))
        self.jobs += 1

    def leave(self, need: Vector, members: int, jobs: int) -> None:
        self.leaving = plus(self.leaving, times(need, members))
        self.jobs_leaving += jobs

    @property
    def now(self) -> float:
        """Its dominant share, without what is draining."""
        return dominant(plus(self.held, times(self.leaving, -1)), self._whole)

    def part(self, need: Vector, members: int) -> float:
        """Return the dominant share of a gang."""
        return dominant(times(need, members), self._whole)

    @property
    def weighted_usage(self) -> float:
        return (self.now + self.share.used / FADE_S) / self.share.weight

    def room_for(self, need: Vector, *, without_leaving: bool = False) -> float:
        """Return how many more members the quota allows."""
        held = plus(self.held, times(self.leaving, -1)) if without_leaving else self.held
        return self._max_members(need, held)

    def max_members(self, need: Vector) -> float:
        """Return how many members the quota would allow if the tenant held nothing."""
        return self._max_members(need, NOTHING)

    def may_begin(self, *, without_leaving: bool = False) -> bool:
        """Return whether the quota allows one more running job."""
        jobs = self.jobs - (self.jobs_leaving if without_leaving else 0)
        return self.share.max_jobs is None or jobs < self.share.max_jobs

    def _max_members(self, need: Vector, held: Vector) -> float:
        quota = self.share.quota
        members = math.inf
        for limit, has, each in zip(quota.limits, held, need, strict=True):
            if limit is not None and each > 0:
                members = min(members, math.floor((limit - has + SLACK) / each))
        return max(0.0, members)


def usage_by_tenant(
    waiting: Sequence[PendingJob],
    placed: Sequence[RunningJob],
    shares: Mapping[str, TenantQuota],
    whole: Vector,
) -> dict[str, TenantUsage]:
    """Return the usage of every tenant that has pending or running jobs."""
    jobs = Counter(map(_TENANT, placed))
    tenants = sorted({*jobs, *[job.tenant for job in waiting]})
    usages = {tenant: TenantUsage(shares.get(tenant) or TenantQuota(tenant), whole) for tenant in tenants}
    weights = sum(usage.share.weight for usage in usages.values())
    for usage in usages.values():
        usage.fair = usage.share.weight / weights
    for tenant, room in held_by_tenant(placed).items():
        usages[tenant].held, usages[tenant].jobs = room, jobs[tenant]
    return usages


def priority_of(job: PendingJob, share: TenantQuota) -> int:
    """Return the priority of a job, limited by its tenant's quota."""
    limit = share.max_priority
    return job.priority if limit is None else min(job.priority, limit)
