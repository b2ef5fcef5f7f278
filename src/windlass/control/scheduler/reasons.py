"""Why a job waits, or has to go, in words for its owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.control.scheduler.fair_share import TenantUsage
from windlass.control.scheduler.snapshot import MemberResources, PendingJob, QuotaLimit
from windlass.spec.units import format_bytes, format_count

NAMED = 3
"""More jobs than these are counted, not named."""


def admitted(ask: PendingJob, members: int) -> str:
    if members < ask.members:
        return f"starts with {members} of {ask.members} members; more join when there is room"
    return "there is room for it"


def too_large(ask: PendingJob, fits: int, machines: int) -> str:
    """No machine of the cluster, or not enough of them, could ever take it."""
    labels = f" with {', '.join(f'{k}={v}' for k, v in sorted(ask.node_selector.items()))}"
    which = f"the {machines} machines{labels if ask.node_selector else ''}"
    if fits == 0:
        return f"asks for {room(ask.need)} in one machine; none of {which} has so much, even when free"
    return (
        f"asks for {ask.fewest} members of {room(ask.need)} each; {which} could take {fits}, even when free"
    )


def beyond_quota(ask: PendingJob, account: TenantUsage) -> str:
    asked = room(_times(ask.need, ask.fewest))
    return f"asks for {asked}; the quota of '{ask.tenant}' is {quota(account.share.quota)}"


def quota_used(ask: PendingJob, account: TenantUsage, holders: Iterable[str]) -> str:
    if not account.may_begin():
        return f"'{ask.tenant}' may run {account.share.max_jobs} jobs at once: {names(sorted(holders))}"
    used = f"is used by {names(sorted(holders))}"
    return f"the quota of '{ask.tenant}', {quota(account.share.quota)}, {used}"


def behind_own(blocker: str) -> str:
    return f"waits behind {blocker}, which has waited long for the same quota"


def no_room(ask: PendingJob, fits: int, behind: int) -> str:
    if ask.fewest == 1:
        text = f"waits for a machine with {room(ask.need)} free"
    else:
        text = f"waits for room for {ask.fewest} members of {room(ask.need)} each; {fits} would fit now"
    return f"{text}; behind {_jobs(behind)} of higher priority" if behind else text


def room_kept(keys: Sequence[str]) -> str:
    return f"the free room is kept for {names(keys)}, first in line"


def next_in_line(ask: PendingJob, fits: int) -> str:
    wanted = "a machine is" if ask.fewest == 1 else "machines are"
    return f"is next in line: {wanted} kept free for it; {fits} of {ask.fewest} members would fit now"


def makes_room(keys: Iterable[str]) -> str:
    return f"waits until {names(sorted(keys))} saved and made room for it"


def preempted_by_priority(other: str) -> str:
    return f"saves and makes room for {other}, which has a higher priority"


def preempted_by_share(other: str, tenant: str) -> str:
    return f"saves and makes room for {other}: '{tenant}' has more than its share, the other less"


def shrunk(members: int, other: str) -> str:
    return f"goes on with {members} members, to make room for {other}"


def grown(members: int) -> str:
    return f"goes on with {members} members: there is room, and nobody waits for it"


def broken(missing: int) -> str:
    lost = "a member has" if missing == 1 else f"{missing} members have"
    return f"{lost} no machine and there is no room for a new one; waits again with its first time"


def broken_elastic(members: int) -> str:
    return f"goes on with the {members} members that have a machine"


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
