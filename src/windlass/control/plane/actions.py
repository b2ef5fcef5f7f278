"""The diff: what to do at the backend, from the recorded job and its observed group. Pure."""

from __future__ import annotations

from typing import Literal

from windlass.cluster.backend import GroupStatus
from windlass.control.plane.queued_job import LEAVING, PLACED, JobEntry

Action = Literal["launch", "stop"]


def action_for(entry: JobEntry | None, status: GroupStatus | None) -> Action | None:
    """Return the action that brings a group closer to its job; a group without a job is stopped.

    Launching a group that already exists scales it to another count, or replaces lost members.
    """
    if entry is None or entry.phase not in PLACED or entry.phase in LEAVING:
        return "stop" if status is not None and not status.stopping else None
    if status is None:
        return "launch"
    if status.stopping or status.over:
        return None
    if status.group.count != entry.members:
        return "launch"
    return "launch" if any(member.state == "lost" for member in status.members) else None


def is_settled(status: GroupStatus) -> bool:
    """Whether a group is neither starting nor stopping."""
    return not status.stopping and all(member.state != "pending" for member in status.members)


def retry_action(entry: JobEntry | None, status: GroupStatus) -> Action:
    """Return the action to repeat for a group that is starting or stopping.

    A launch or stop may have been recorded by a process that crashed before it carried it out; so repeat it.
    """
    wanted = entry is not None and entry.phase in PLACED and entry.phase not in LEAVING
    return "launch" if wanted and not status.stopping else "stop"
