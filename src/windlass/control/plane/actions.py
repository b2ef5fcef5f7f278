"""What is to be done at the backend, by what is written of a job and what is seen. Pure, and repeatable."""

from __future__ import annotations

from typing import Literal

from windlass.cluster.backend import GroupStatus
from windlass.control.plane.queued_job import LEAVING, PLACED, JobEntry

Action = Literal["launch", "stop"]


def action_for(entry: JobEntry | None, standing: GroupStatus | None) -> Action | None:
    """Return what brings the group nearer to its entry; a group without one is nobody's, and stopped.

    To launch a group that is there in another number scales it; one that lost members gets them back.
    """
    if entry is None or entry.phase not in PLACED or entry.phase in LEAVING:
        return "stop" if standing is not None and not standing.stopping else None
    if standing is None:
        return "launch"
    if standing.stopping or standing.over:
        return None
    if standing.group.count != entry.members:
        return "launch"
    return "launch" if any(member.state == "lost" for member in standing.members) else None


def is_settled(standing: GroupStatus) -> bool:
    """Whether nothing is under way with a group: it neither goes nor begins."""
    return not standing.stopping and all(member.state != "pending" for member in standing.members)


def retry_action(entry: JobEntry | None, standing: GroupStatus) -> Action:
    """Return what to do once more with a group that is not settled.

    Whoever died in the midst of a call has left word of what it wanted, and perhaps nobody who makes it so.
    """
    wanted = entry is not None and entry.phase in PLACED and entry.phase not in LEAVING
    return "launch" if wanted and not standing.stopping else "stop"
