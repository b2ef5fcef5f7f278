"""Who may run: rule by rule, on fleets small enough to see through."""

from __future__ import annotations

from dataclasses import replace

from tests.control.scheduler.world import World, ask, machines, told
from windlass.control.scheduler.decide import PATIENCE_S, decide
from windlass.control.scheduler.snapshot import (
    MIN_RUN_S,
    MemberResources,
    QuotaLimit,
    RunningJob,
    Snapshot,
    TenantQuota,
)


def test_a_gang_starts_with_all_its_members_or_not_at_all() -> None:
    world = World(machines(2))
    small, large = world.submit(ask(members=6)), world.submit(ask(members=3))
    decisions = told(world.step())
    assert (decisions[small.key].what, decisions[small.key].members) == ("admit", 6)
    assert decisions[large.key].what == "hold"
    assert decisions[large.key].reason == "waits for room for 3 members of 1 core each; 2 would fit now"


def test_higher_priority_goes_first() -> None:
    world = World(machines(1))
    low, high = world.submit(ask(members=4)), world.submit(ask(members=4, priority=5))
    decisions = told(world.step())
    assert decisions[high.key].what == "admit"
    assert decisions[low.key].reason.startswith("waits for room for 4 members")


def test_jobs_behind_a_higher_priority_learn_so() -> None:
    world = World(machines(1))
    world.submit(ask(members=3), 1e9)
    world.step()
    world.submit(ask("b", members=4, priority=5, preemptible=False))
    low = world.submit(ask("b", members=2))
    assert told(world.step())[low.key].reason.endswith("behind 1 job of higher priority")


def test_the_tenant_with_less_goes_first() -> None:
    world = World(machines(1, cores=3), {"rich": TenantQuota("rich", used=1e5)})
    rich, poor = world.submit(ask("rich", 3, key="rich/a")), world.submit(ask("poor", 3, key="poor/b"))
    decisions = told(world.step())
    assert (decisions[poor.key].what, decisions[rich.key].what) == ("admit", "hold")


def test_a_quota_is_kept_and_its_users_are_named() -> None:
    world = World(machines(4), {"a": TenantQuota("a", quota=QuotaLimit(cores=6))})
    first, second = world.submit(ask(members=4)), world.submit(ask(members=4))
    decisions = told(world.step())
    assert decisions[first.key].what == "admit"
    assert decisions[second.key].reason == f"the quota of 'a', 6 cores, is used by {first.key}"


def test_more_jobs_at_once_than_allowed_wait() -> None:
    world = World(machines(4), {"a": TenantQuota("a", max_jobs=1)})
    world.submit(ask())
    second = world.submit(ask())
    assert told(world.step())[second.key].reason.startswith("'a' may run 1 jobs at once: a/")


def test_a_job_that_can_never_run_is_reported_and_delays_no_other() -> None:
    world = World(machines(2), {"b": TenantQuota("b", quota=QuotaLimit(cores=2))})
    huge = world.submit(ask(need=MemberResources(5.0)))
    many = world.submit(ask(members=9))
    labelled = world.submit(ask(node_selector={"disk": "fast"}))
    beyond = world.submit(ask("b", members=3))
    fine = world.submit(ask("a", members=8))
    world.now_s = 2 * PATIENCE_S
    decisions = told(world.step())
    assert "none of the 2 machines has that much" in decisions[huge.key].reason
    assert "could take 8, even when idle" in decisions[many.key].reason
    assert "the 0 machines with disk=fast" in decisions[labelled.key].reason
    assert decisions[beyond.key].reason == "requests 3 cores; the quota of 'b' is 2 cores"
    assert decisions[fine.key].what == "admit"


def test_labels_choose_machines() -> None:
    fleet = machines(2)
    fleet[1] = replace(fleet[1], labels={"gpu": "h100"})
    world = World(fleet)
    job = world.submit(ask(members=4, node_selector={"gpu": "h100"}))
    world.step()
    assert set(world.placed[job.key].nodes) == {"m001"}


def test_members_without_gpus_leave_machines_with_free_gpus_alone() -> None:
    world = World([*machines(1, gpus=4), replace(machines(2)[1])])
    job = world.submit(ask(members=1))
    world.step()
    assert world.placed[job.key].nodes == ("m001",)


def test_pack_takes_the_tightest_machine_and_spread_one_member_each() -> None:
    world = World(machines(3))
    world.submit(ask(members=2, placement="pack", key="a/x"))
    world.step()
    assert world.placed["a/x"].nodes == ("m000", "m000")
    world.submit(ask(members=2, placement="pack", key="a/y"))
    world.submit(ask(members=3, placement="spread", key="a/z"))
    world.step()
    assert world.placed["a/y"].nodes == ("m000", "m000")
    assert sorted(world.placed["a/z"].nodes) == ["m001", "m001", "m002"]


def test_an_elastic_job_starts_smaller_and_grows_when_no_job_waits() -> None:
    world = World(machines(1))
    first = world.submit(ask("b", 3), 1000)
    world.step()
    job = world.submit(ask(members=4, min_members=1))
    assert told(world.step())[job.key].members == 1
    for _ in range(20):
        world.step()
    assert first.key not in world.placed
    assert world.placed[job.key].members == 4


def test_an_elastic_job_shrinks_for_one_that_waits_and_no_further_than_needed() -> None:
    world = World(machines(2))
    elastic = world.submit(ask(members=8, min_members=2))
    world.step()
    world.step(MIN_RUN_S)
    job = world.submit(ask("b", members=3))
    decisions = told(world.step())
    assert (decisions[elastic.key].what, decisions[elastic.key].members) == ("resize", 5)
    assert decisions[job.key].reason == f"waits until {elastic.key} saved and made room for it"
    assert told(world.step())[job.key].what == "admit"


def test_higher_priority_preempts_the_lowest_that_suffices() -> None:
    world = World(machines(3))
    keys = [world.submit(ask("a", 4, priority=p, placement="pack", key=f"a/p{p}")).key for p in (0, 1, 2)]
    world.step()
    world.step(MIN_RUN_S)
    urgent = world.submit(ask("b", 4, priority=5))
    decisions = told(world.step())
    assert [key for key in keys if decisions.get(key)] == ["a/p0"]
    assert decisions["a/p0"].other == urgent.key
    assert told(world.step())[urgent.key].what == "admit"


def test_what_cannot_be_preempted_or_has_just_begun_stays() -> None:
    world = World(machines(1))
    world.submit(ask(members=4))
    world.step()
    urgent = world.submit(ask("b", 4, priority=5))
    decisions = world.step(MIN_RUN_S / 2)
    assert [decision.key for decision in decisions] == [urgent.key]
    fixed = World(machines(1))
    fixed.submit(ask(members=4, preemptible=False))
    fixed.step()
    fixed.submit(replace(urgent, key="b/again"))
    assert [decision.what for decision in fixed.step(10 * MIN_RUN_S)] == ["hold"]


def test_room_that_was_made_for_one_is_taken_by_no_other() -> None:
    world = World(machines(1))
    low = world.submit(ask(members=4))
    world.step()
    world.step(MIN_RUN_S)
    urgent = world.submit(ask("b", 4, priority=5))
    world.step()
    assert world.placed[low.key].leaving
    late = world.submit(ask("c", 1, priority=4))
    decisions = told(world.step())
    assert (decisions[urgent.key].what, decisions[late.key].what) == ("admit", "hold")


def test_a_tenant_far_below_its_share_takes_from_one_above_it() -> None:
    world = World(machines(4))
    for i in range(8):
        world.submit(ask("rich", 2, key=f"rich/{i}"))
    world.step()
    world.step(MIN_RUN_S)
    poor = [world.submit(ask("poor", 2, key=f"poor/{i}")).key for i in range(8)]
    for _ in range(30):
        world.step(MIN_RUN_S)
    held = [key for key in world.placed if key in poor]
    assert 2 <= len(held) <= 4  # not more than half of the machines are taken by force


def test_priority_is_capped_by_the_share() -> None:
    world = World(machines(1), {"loud": TenantQuota("loud", max_priority=0)})
    calm = world.submit(ask("calm", 4, key="calm/1"))
    world.submit(ask("loud", 4, priority=100, key="loud/1"))
    assert told(world.step())[calm.key].what == "admit"


def test_a_tenants_own_lower_job_leaves_when_the_quota_is_in_the_way() -> None:
    world = World(machines(4), {"a": TenantQuota("a", quota=QuotaLimit(cores=4))})
    low = world.submit(ask(members=4))
    world.step()
    world.step(MIN_RUN_S)
    high = world.submit(ask(members=4, priority=1))
    decisions = told(world.step())
    assert decisions[low.key].what == "preempt"
    assert decisions[high.key].reason == f"waits until {low.key} saved and made room for it"
    assert told(world.step())[high.key].what == "admit"


def test_small_jobs_of_a_tenant_do_not_eat_the_quota_for_ever() -> None:
    world = World(machines(4), {"a": TenantQuota("a", quota=QuotaLimit(cores=4))})
    world.submit(ask(members=2), 300)
    world.step()
    large = world.submit(ask(members=4))
    for _ in range(60):
        world.submit(ask(members=1), 300)
        world.step()
    assert world.began[large.key] <= PATIENCE_S + 300 + 5 * 60


def test_a_gang_that_lost_a_machine_for_which_there_is_no_other_waits_again() -> None:
    job, other = ask("a", 2, need=MemberResources(4.0)), ask("b", 1, need=MemberResources(4.0))
    full = [replace(machine, free=MemberResources()) for machine in machines(2)]
    placed = [RunningJob(job, 2, ("m000",)), RunningJob(other, 1, ("m001",))]
    decision = told(decide(Snapshot(1e4, full, [], placed)))[job.key]
    assert decision.what == "preempt"
    assert decision.reason.startswith("a member has no machine and there is no room for a new one")
    elastic = [RunningJob(replace(job, min_members=1), 2, ("m000",)), placed[1]]
    assert told(decide(Snapshot(1e4, full, [], elastic)))[job.key].members == 1


def test_room_of_members_that_are_still_to_be_placed_is_not_given_away() -> None:
    job = ask(members=3)
    late = ask(members=2)
    decisions = told(decide(Snapshot(1.0, machines(1), [late], [RunningJob(job, 3)])))
    assert decisions[late.key].what == "hold"


def test_no_job_waits_for_the_capacity_of_a_service() -> None:
    """Machines that a service holds are of no use to a gang that is next in line."""
    world = World(machines(3))
    world.submit(ask("s", 4, endless=True, preemptible=False, placement="pack"))
    world.submit(ask("b", 4, placement="pack"), 2000)
    world.submit(ask("c", 2, placement="pack"), 2000)
    world.step()
    large = world.submit(ask("a", 8, preemptible=False))
    world.step(PATIENCE_S)
    late = world.submit(ask("c", 1))
    decisions = told(world.step())
    assert decisions[large.key].reason.startswith("is next in line: machines are reserved for it; 2 of 8")
    assert decisions[late.key].reason == f"the free room is reserved for {large.key}, first in line"


def test_cores_in_fractions_add_up() -> None:
    world = World(machines(1, cores=1.0))
    for i in range(10):
        world.submit(ask("a", 1, MemberResources(0.1), key=f"a/{i}"))
        world.step()
    assert len(world.placed) == 10
