"""Why a job waits, is preempted or resized: sentences for its owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.control.scheduler.fair_share import TenantUsage
from windlass.control.scheduler.snapshot import MemberResources, PendingJob, QuotaLimit
from windlass.spec.units import format_bytes, format_count

NAMED = 3
"""More jobs than this are counted, not named."""


def admitted(job: PendingJob, members: int) -> str:
    if members < job.members:
        return f"starts with {members} of {job.members} members; more join when there is room"
    return "there is room for it"


def too_large(job: PendingJob, fits: int, machines: int) -> str:
    """No node of the cluster, or not enough of them, could ever take the job."""
    labels = f" with {', '.join(f'{k}={v}' for k, v in sorted(job.node_selector.items()))}"
    which = f"the {machines} machines{labels if job.node_selector else ''}"
    if fits == 0:
        return f"requests {room(job.need)} on one machine; none of {which} has that much, even when idle"
    return (
        f"requests {job.fewest} members of {room(job.need)} each; {which} could take {fits}, even when idle"
    )


def beyond_quota(job: PendingJob, usage: TenantUsage) -> str:
    requested = room(_times(job.need, job.fewest))
    return f"requests {requested}; the quota of '{job.tenant}' is {quota(usage.share.quota)}"


def quota_used(job: PendingJob, usage: TenantUsage, holders: Iterable[str]) -> str:
    if not usage.may_begin():
        return f"'{job.tenant}' may run {usage.share.max_jobs} jobs at once: {names(sorted(holders))}"
    used = f"is used by {names(sorted(holders))}"
    return f"the quota of '{job.tenant}', {quota(usage.share.quota)}, {used}"


def behind_own(blocker: str) -> str:
    return f"waits behind {blocker}, which has waited long for the same quota"


def no_room(job: PendingJob, fits: int, behind: int) -> str:
    if job.fewest == 1:
        text = f"waits for a machine with {room(job.need)} free"
    else:
        text = f"waits for room for {job.fewest} members of {room(job.need)} each; {fits} would fit now"
    return f"{text}; behind {_jobs(behind)} of higher priority" if behind else text


def room_kept(keys: Sequence[str]) -> str:
    return f"the free room is reserved for {names(keys)}, first in line"


def next_in_line(job: PendingJob, fits: int) -> str:
    wanted = "a machine is" if job.fewest == 1 else "machines are"
    return f"is next in line: {wanted} reserved for it; {fits} of {job.fewest} members would fit now"


def makes_room(keys: Iterable[str]) -> str:
    return f"waits until {names(sorted(keys))} saved and made room for it"


def preempted_by_priority(other: str) -> str:
    return f"saves and makes room for {other}, which has a higher priority"


def preempted_by_share(other: str, tenant: str) -> str:
    return f"saves and makes room for {other}: '{tenant}' is above its fair share, the other below"


def shrunk(members: int, other: str) -> str:
    return f"continues with {members} members, to make room for {other}"


def grown(members: int) -> str:
    return f"continues with {members} members: there is room that no other job waits for"


def broken(missing: int) -> str:
    lost = "a member has" if missing == 1 else f"{missing} members have"
    return (
        f"{lost} no machine and there is no room for a new one; waits again with its original submission time"
    )


def broken_elastic(members: int) -> str:
    return f"continues with the {members} members that have a machine"


def names(keys: Sequence[str]) -> str:
    """Name a few, count the rest."""
    named = ", ".join(keys[:NAMED])
    return f"{named} and {_jobs(len(keys) - NAMED)} more" if len(keys) > NAMED else named


def room(need: MemberResources) -> str:
    parts = []
    if need.gpus:
        parts.append(f"{need.gpus} GPU{'s' * (need.gpus != 1)}")
    if need.cores:
        parts.append(f"{format_count(need.cores)} core{'s' * (need.cores != 1)}")
    if need.memory_bytes:
        parts.append(format_bytes(need.memory_bytes))
    return ", ".join(parts) or "nothing"


def quota(limits: QuotaLimit) -> str:
    parts = []
    if limits.gpus is not None:
        parts.append(f"{limits.gpus} GPUs")
    if limits.cores is not None:
        parts.append(f"{format_count(limits.cores)} cores")
    if limits.memory_bytes is not None:
        parts.append(format_bytes(limits.memory_bytes))
    return ", ".join(parts)


def _times(need: MemberResources, number: int) -> MemberResources:
    return MemberResources(need.cores * number, need.memory_bytes * number, need.gpus * number)


def _jobs(number: int) -> str:
    return f"{number} job{'s' * (number != 1)}"
