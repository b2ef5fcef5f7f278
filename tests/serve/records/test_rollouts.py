"""Records of roll-outs, on every kind of database."""

from __future__ import annotations

import pytest

from windlass.serve.records.audit_log import Actor, newest_records
from windlass.serve.records.rollouts import ABANDONED_S, Rollouts
from windlass.spec.errors import AskedWrongly, InUse, NotFound
from windlass.spec.rollout import Rollout
from windlass.store.database import Database


@pytest.fixture
def rollouts(state: Database) -> Rollouts:
    return Rollouts(state)


def test_a_roll_out_is_found_by_its_id_and_by_the_name_of_its_model(rollouts: Rollouts, me: Actor) -> None:
    made = rollouts.start("base@4", "canary", Rollout(stages=(0.1, 1.0)), me, held_out="/text")
    assert rollouts.find(made.id) == made
    assert rollouts.find("base") == made
    assert rollouts.open() == (made,)
    assert made.policy.stages == (0.1, 1.0)


def test_only_one_version_of_a_name_is_rolled_out_at_a_time(rollouts: Rollouts, me: Actor) -> None:
    first = rollouts.start("base@4", "canary", Rollout(), me)
    rollouts.start("other@1", "canary", Rollout(), me)
    with pytest.raises(InUse, match=first.id):
        rollouts.start("base@5", "canary", Rollout(), me)
    rollouts.change(first.id, "rolled_back", reason="errors", report={})
    rollouts.start("base@5", "canary", Rollout(), me)


def test_one_supervisor_drives_it_and_no_other_takes_it(rollouts: Rollouts, me: Actor) -> None:
    made = rollouts.start("base@4", "canary", Rollout(), me)
    assert rollouts.claim(made.id, "one", "base@3")
    assert not rollouts.claim(made.id, "two", "base@3")
    assert rollouts.claim(made.id, "one", "base@3")
    assert rollouts.find(made.id).stable == "base@3"


def test_another_supervisor_takes_over_when_the_first_is_gone(state: Database, me: Actor) -> None:
    moments = [0.0]
    rollouts = Rollouts(state, clock=lambda: moments[0])
    made = rollouts.start("base@4", "canary", Rollout(), me)
    rollouts.claim(made.id, "one", "base@3")
    moments[0] = ABANDONED_S + 1
    assert rollouts.claim(made.id, "two", "base@3")
    assert not rollouts.claim(made.id, "one", "base@3")


def test_a_roll_out_without_a_supervisor_is_aborted_at_once(rollouts: Rollouts, me: Actor) -> None:
    made = rollouts.start("base@4", "canary", Rollout(), me)
    assert rollouts.command(made.id, "abort", me).state == "aborted"
    with pytest.raises(AskedWrongly, match="has ended: aborted"):
        rollouts.command(made.id, "promote", me)


def test_a_request_waits_for_the_supervisor_that_drives(rollouts: Rollouts, me: Actor) -> None:
    made = rollouts.start("base@4", "canary", Rollout(), me)
    rollouts.claim(made.id, "one", "base@3")
    commanded = rollouts.command(made.id, "abort", me)
    assert (commanded.state, commanded.command) == ("waiting", "abort")


def test_who_started_and_how_it_ended_are_in_the_audit_log(
    rollouts: Rollouts, state: Database, me: Actor
) -> None:
    made = rollouts.start("base@4", "canary", Rollout(), me)
    rollouts.change(made.id, "canary", weight=0.05, report={"a": 1})
    rollouts.change(made.id, "rolled_back", reason="errors", report={})
    told = [(each.action, each.who) for each in newest_records(state, 10)]
    assert told == [("rollout.start", me.name), ("rollout.rolled_back", "supervisor")]


def test_an_unknown_roll_out_is_not_found(rollouts: Rollouts) -> None:
    with pytest.raises(NotFound, match="no roll-out 'ro-1'"):
        rollouts.find("ro-1")
