"""Verdicts on replicas: when they change, and when they must not."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.rollout import HealthChecks
from windlass.supervisor.health.health_policy import Grade, ReplicaHealth, decide

grades = st.lists(st.sampled_from(["right", "wrong", "slow", "silent"]), max_size=60)
tables = st.builds(
    lambda bad, more, good: HealthChecks(bad=bad, of=bad + more, good=good),
    st.integers(2, 5), st.integers(0, 5), st.integers(1, 6),
)  # fmt: skip


def records(seen: list[Grade], health: HealthChecks) -> list[ReplicaHealth]:
    """The record after every answer, a second apart."""
    found = [ReplicaHealth()]
    for now, grade in enumerate(seen):
        found.append(found[-1].after(grade, health, float(now)))
    return found


@given(grades, tables)
def test_a_replica_turns_unhealthy_only_with_enough_bad_answers_of_the_last(
    seen: list[Grade], health: HealthChecks
) -> None:
    walk = records(seen, health)
    for at in range(1, len(walk)):
        if walk[at - 1].is_healthy and not walk[at].is_healthy:
            assert sum(grade != "right" for grade in seen[max(0, at - health.of) : at]) >= health.bad


@given(grades, tables)
def test_a_replica_is_healthy_again_only_after_enough_good_answers_in_a_row(
    seen: list[Grade], health: HealthChecks
) -> None:
    walk = records(seen, health)
    for at in range(1, len(walk)):
        if walk[at].is_healthy and not walk[at - 1].is_healthy:
            assert seen[at - health.good : at] == ["right"] * health.good


@given(st.sampled_from(["wrong", "slow", "silent"]), tables, st.integers(0, 20), st.integers(0, 20))
def test_a_single_bad_answer_never_changes_anything(
    grade: Grade, health: HealthChecks, before: int, after: int
) -> None:
    seen: list[Grade] = ["right"] * before + [grade] + ["right"] * after
    assert all(record.is_healthy for record in records(seen, health))


@given(grades, tables)
def test_verdicts_do_not_flap(seen: list[Grade], health: HealthChecks) -> None:
    """Between two changes for the worse lie at least `good` good answers and a bad one."""
    walk = [record.is_healthy for record in records(seen, health)]
    falls = [at for at in range(1, len(walk)) if walk[at - 1] and not walk[at]]
    assert all(later - earlier >= health.good + 1 for earlier, later in itertools.pairwise(falls))


def test_who_answers_wrongly_goes_even_if_it_is_the_last() -> None:
    health = HealthChecks()
    record = records(["wrong", "wrong"], health)[-1]
    assert decide(record, health, others_ready=0, now=2.0) == "replace"


def test_the_last_ready_replica_stays_though_it_is_slow() -> None:
    health = HealthChecks(restart_after=10)
    record = records(["slow", "slow"], health)[-1]
    assert decide(record, health, others_ready=0, now=999.0) == "use"
    assert decide(record, health, others_ready=1, now=2.0) == "avoid"
    assert decide(record, health, others_ready=1, now=12.0) == "replace"
