"""What a job comes to by what is seen of its group. Pure: the loop writes it down."""

from __future__ import annotations

from windlass.cluster.backend import GroupStatus
from windlass.control.plane.queued_job import LEAVING, JobEntry

MAX_GONE = 20
"""How often the processes of a job may be gone without a word, before it counts as failed."""


def next_phase(entry: JobEntry, standing: GroupStatus | None, now_s: float) -> JobEntry:
    """Return the entry as it is by what its owner wants and what is seen; itself if nothing changed."""
    if entry.over:
        return entry
    if entry.wish == "stop" and entry.phase not in LEAVING:
        if entry.phase == "queued":
            return entry.now("stopped", "taken out of the queue by its owner", now_s)
        entry = entry.now("stopping", "its owner asked for its end", now_s)
    if entry.phase == "queued":
        return entry
    if entry.phase in LEAVING:
        return _left(entry, standing, now_s)
    if standing is None:
        return _vanished(entry, now_s) if entry.phase == "running" else entry
    if standing.stopping:
        return entry
    if standing.over:
        return _ended(entry, standing, now_s)
    if standing.running and entry.phase == "admitted":
        return entry.now("running", "", now_s, begun_s=entry.begun_s or now_s)
    return entry


def _left(entry: JobEntry, standing: GroupStatus | None, now_s: float) -> JobEntry:
    if standing is not None:
        finished = standing.over and all(member.state == "done" for member in standing.members)
        return entry.now("done", "it finished before it had to go", now_s) if finished else entry
    if entry.phase == "stopping" or entry.wish == "stop":
        return entry.now("stopped", "ended as its owner asked", now_s)
    return entry.now("queued", entry.reason, now_s, members=0, preemptions=entry.preemptions + 1)


def _ended(entry: JobEntry, standing: GroupStatus, now_s: float) -> JobEntry:
    worst = next((member for member in standing.members if member.state == "failed"), None)
    if worst is None:
        return entry.now("done", "", now_s)
    log = f"; its log: {worst.logs}" if worst.logs else ""
    return entry.now("failed", f"part {worst.index} {worst.reason}{log}", now_s)


def _vanished(entry: JobEntry, now_s: float) -> JobEntry:
    """Nobody stopped the group, and it is not there: its machines or its cluster are gone, or began anew."""
    if entry.attempts >= MAX_GONE + entry.preemptions:
        return entry.now("failed", f"its processes were gone {MAX_GONE} times without a word", now_s)
    reason = "its processes were gone; they are launched again"
    return entry.now("admitted", reason, now_s, attempts=entry.attempts + 1)
