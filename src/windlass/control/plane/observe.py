"""The next phase of a job, from what is observed of its group. Pure: the reconcile loop writes it."""

from __future__ import annotations

from windlass.cluster.backend import GroupStatus
from windlass.control.plane.queued_job import LEAVING, JobEntry

MAX_GONE = 20
"""How often the processes of a job may vanish before the job counts as failed."""


def next_phase(entry: JobEntry, status: GroupStatus | None, now_s: float) -> JobEntry:
    """Return the entry in its new phase, from what its owner wants and what is observed; else itself."""
    if entry.over:
        return entry
    if entry.desired == "stop" and entry.phase not in LEAVING:
        if entry.phase == "queued":
            return entry.now("stopped", "removed from the queue by its owner", now_s)
        entry = entry.now("stopping", "at the request of its owner", now_s)
    if entry.phase == "queued":
        return entry
    if entry.phase in LEAVING:
        return _left(entry, status, now_s)
    if status is None:
        return _vanished(entry, now_s) if entry.phase == "running" else entry
    if status.stopping:
        return entry
    if status.over:
        return _ended(entry, status, now_s)
    if status.running and entry.phase == "admitted":
        return entry.now("running", "", now_s, begun_s=entry.begun_s or now_s)
    return entry


def _left(entry: JobEntry, status: GroupStatus | None, now_s: float) -> JobEntry:
    if status is not None:
        finished = status.over and all(member.state == "done" for member in status.members)
        return entry.now("done", "it finished before it had to stop", now_s) if finished else entry
    if entry.phase == "stopping" or entry.desired == "stop":
        return entry.now("stopped", "at the request of its owner", now_s)
    return entry.now("queued", entry.reason, now_s, members=0, preemptions=entry.preemptions + 1)


def _ended(entry: JobEntry, status: GroupStatus, now_s: float) -> JobEntry:
    worst = next((member for member in status.members if member.state == "failed"), None)
    if worst is None:
        return entry.now("done", "", now_s)
    log = f"; its log: {worst.logs}" if worst.logs else ""
    return entry.now("failed", f"part {worst.index} {worst.reason}{log}", now_s)


def _vanished(entry: JobEntry, now_s: float) -> JobEntry:
    """The group is gone although nothing stopped it: its nodes or its cluster failed or restarted."""
    if entry.attempts >= MAX_GONE + entry.preemptions:
        return entry.now("failed", f"its processes vanished {MAX_GONE} times without an exit status", now_s)
    reason = "its processes vanished; they are launched again"
    return entry.now("admitted", reason, now_s, attempts=entry.attempts + 1)
