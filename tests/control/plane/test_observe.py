"""What a job comes to by what is seen of its group, and what is done about it."""

from __future__ import annotations

import pytest

from tests.control.plane.world import group_of
from windlass.cluster.backend import GroupStatus, Member, State
from windlass.control.plane.actions import action_for
from windlass.control.plane.observe import MAX_GONE, next_phase
from windlass.control.plane.queued_job import DesiredState, JobEntry, Phase, ResourceNeeds

NOW_S = 50.0


def entry(phase: Phase, *, desired: DesiredState = "run", members: int = 2, attempts: int = 1) -> JobEntry:
    made = JobEntry("u1", "default", "a", "train", "3", ResourceNeeds(members=2, cores=1.0), "me", 1.0)
    return made.now(phase, "", 2.0, members=members, attempts=attempts, desired=desired)


def standing(*states: State, stopping: bool = False) -> GroupStatus:
    members = tuple(Member(i, state, reason="why", logs="/log") for i, state in enumerate(states))
    return GroupStatus(group_of(entry("running", members=len(states))), members, stopping)


SEEN: list[tuple[Phase, DesiredState, GroupStatus | None, Phase, str | None]] = [
    ("queued", "run", None, "queued", None),
    ("queued", "stop", None, "stopped", None),
    ("admitted", "run", None, "admitted", "launch"),
    ("admitted", "run", standing("pending", "pending"), "admitted", None),
    ("admitted", "run", standing("running", "pending"), "running", None),
    ("admitted", "stop", None, "stopped", None),
    ("admitted", "stop", standing("running", "running"), "stopping", "stop"),
    ("running", "run", standing("running", "running"), "running", None),
    ("running", "run", standing("running", "lost"), "running", "launch"),
    ("running", "run", None, "admitted", "launch"),
    ("running", "run", standing("done", "done"), "done", "stop"),
    ("running", "run", standing("done", "failed"), "failed", "stop"),
    ("running", "run", standing("running", "running", stopping=True), "running", None),
    ("preempting", "run", standing("running", "running"), "preempting", "stop"),
    ("preempting", "run", standing("running", "failed", stopping=True), "preempting", None),
    ("preempting", "run", standing("done", "done"), "done", "stop"),
    ("preempting", "run", None, "queued", None),
    ("preempting", "stop", None, "stopped", None),
    ("stopping", "stop", standing("failed", "failed"), "stopping", "stop"),
    ("stopping", "stop", None, "stopped", None),
    ("queued", "run", standing("running", "running"), "queued", "stop"),
]


@pytest.mark.parametrize(("phase", "desired", "seen", "after", "deed"), SEEN)
def test_what_is_seen_decides_what_it_is_and_what_is_done(
    phase: Phase, desired: DesiredState, seen: GroupStatus | None, after: Phase, deed: str | None
) -> None:
    found = next_phase(entry(phase, desired=desired), seen, NOW_S)
    assert found.phase == after
    assert action_for(found, seen) == deed
    assert (found.ended_s is not None) == (after in ("done", "failed", "stopped"))
    assert next_phase(found, seen, NOW_S + 1) is found or (phase, seen) == ("running", None)


def test_a_failure_is_reported_with_its_log() -> None:
    assert (
        next_phase(entry("running"), standing("done", "failed"), NOW_S).reason == "part 1 why; its log: /log"
    )


def test_a_job_that_is_gone_again_and_again_has_failed() -> None:
    after = next_phase(entry("running", attempts=MAX_GONE), None, NOW_S)
    assert (after.phase, after.reason.partition(" times")[0][-2:]) == ("failed", str(MAX_GONE))


def test_another_number_of_members_is_launched_and_orphans_are_stopped() -> None:
    assert action_for(entry("running", members=1), standing("running", "running")) == "launch"
    assert action_for(None, standing("running")) == "stop"
    assert action_for(None, standing("running", stopping=True)) is None
