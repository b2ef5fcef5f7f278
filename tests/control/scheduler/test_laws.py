"""What holds for every decision, on random fleets, jobs and moments."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.scheduler.world import World, ask, fits, less, machines, told
from windlass.control.scheduler.capacity import Columns
from windlass.control.scheduler.decide import PATIENCE_S, decide
from windlass.control.scheduler.snapshot import (
    JobDecision,
    MemberResources,
    PendingJob,
    QuotaLimit,
    RunningJob,
    SchedulableNode,
    Snapshot,
    TenantQuota,
)

TENANTS = "abc"
NEEDS = (
    MemberResources(1.0),
    MemberResources(2.0, 4),
    MemberResources(1.0, 1, 1),
    MemberResources(0.5),
    MemberResources(4.0, 8, 2),
)
STEPS = 15


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A fleet and tenants; jobs come in `play`."""
    fleet = [
        SchedulableNode(f"m{i:02}", room, room, labels)
        for i in range(draw(st.integers(1, 6)))
        for room in [
            draw(
                st.sampled_from(
                    (MemberResources(4.0, 16), MemberResources(8.0, 16, 2), MemberResources(4.0, 8, 4))
                )
            )
        ]
        for labels in [draw(st.sampled_from(({}, {"disk": "fast"})))]
    ]
    quotas = st.sampled_from((QuotaLimit(), QuotaLimit(cores=6), QuotaLimit(cores=8, gpus=2)))
    shares = {
        tenant: TenantQuota(
            tenant,
            draw(st.sampled_from((1.0, 2.0, 0.5))),
            draw(quotas),
            draw(st.sampled_from((None, None, 3))),
            draw(st.sampled_from((None, 1))),
        )
        for tenant in TENANTS
    }
    return World(fleet, shares)


def arrival(chance: random.Random) -> PendingJob:
    members = chance.choice((1, 1, 2, 3, 5, 8))
    return ask(
        chance.choice(TENANTS),
        members,
        chance.choice(NEEDS),
        priority=chance.choice((0, 0, 0, 1, 2)),
        min_members=chance.choice((None, None, 1, max(1, members // 2))),
        placement=chance.choice(("spread", "pack")),
        node_selector=chance.choice(({}, {}, {}, {"disk": "fast"})),
        preemptible=chance.random() < 0.8,
        endless=chance.random() < 0.1,
    )


def play(world: World, chance: random.Random, arrivals: float = 2.0):
    """Let jobs come and go; yield what is seen before each step, and what was decided."""
    for _ in range(STEPS):
        for _ in range(chance.randrange(int(2 * arrivals) + 1)):
            world.submit(arrival(chance), chance.choice((100.0, 1000.0, 5000.0)))
        before = replace(world, waiting=dict(world.waiting), placed=dict(world.placed))
        yield before, world.step(chance.choice((30.0, 120.0, 400.0)))


seeds = st.integers(0, 2**32)


@settings(max_examples=20)
@given(worlds(), seeds)
def test_nothing_is_given_beyond_capacity_quota_or_gang(world: World, seed: int) -> None:
    for _, decisions in play(world, random.Random(seed)):  # World.step checks capacity
        held: dict[str, list[RunningJob]] = defaultdict(list)
        for each in world.placed.values():
            held[each.job.tenant].append(each)
            assert each.job.fewest <= each.members <= each.job.members
            assert len(each.nodes) >= each.members
        for tenant, placed in held.items():
            share = world.shares[tenant]
            assert len(placed) <= (share.max_jobs or len(placed))
            for limit, name in ((share.quota.cores, "cores"), (share.quota.gpus, "gpus")):
                used = sum(getattr(each.job.need, name) * each.members for each in placed)
                assert limit is None or used <= limit + 1e-6
        assert len({decision.key for decision in decisions}) == len(decisions)


@settings(max_examples=20)
@given(worlds(), seeds)
def test_nothing_waits_that_fits_unless_room_or_quota_is_kept_for_another(world: World, seed: int) -> None:
    for _, decisions in play(world, random.Random(seed)):
        free = world.machines()
        for decision in decisions:
            waits = world.waiting.get(decision.key)
            if waits is None or fits(free, waits) < waits.fewest:
                continue
            kept = ("the free room is reserved for", "the quota of", "waits behind", "waits until", "is next")
            assert decision.reason.startswith((*kept, "requests", f"'{waits.tenant}' may run")), decision


@settings(max_examples=20)
@given(worlds(), seeds)
def test_no_job_passes_one_of_higher_priority_that_could_have_had_the_capacity(
    world: World, seed: int
) -> None:
    for before, decisions in play(world, random.Random(seed)):
        rank = {key: _priority(before, each) for key, each in world.waiting.items()}
        for decision in decisions:
            if decision.what != "hold" or not decision.reason.startswith("waits for"):
                continue
            waits = world.waiting[decision.key]
            higher = {
                key: each
                for key, each in world.placed.items()
                if key not in before.waiting or _priority(before, each.job) >= rank[decision.key]
            }
            assert fits(world.machines(higher), waits) < waits.fewest


def _priority(world: World, ask: PendingJob) -> int:
    most = world.shares[ask.tenant].max_priority
    return ask.priority if most is None else min(ask.priority, most)


@settings(max_examples=20)
@given(worlds(), seeds)
def test_preemption_frees_enough_and_preempts_no_job_too_many(world: World, seed: int) -> None:
    chance = random.Random(seed)
    for _ in play(world, chance, arrivals=1.5):
        pass
    urgent = world.submit(replace(arrival(chance), priority=9, tenant="z", key="z/urgent"))
    view = replace(world.view(), waiting=[urgent], now_s=world.now_s + 1000)
    decisions = decide(view)
    yields = {d.key: d for d in decisions if d.other == urgent.key}
    if not yields:
        return
    after = _after(view, yields)
    assert fits(after, urgent) >= urgent.fewest
    for key in yields:
        assert fits(_after(view, {k: d for k, d in yields.items() if k != key}), urgent) < urgent.fewest


def _after(view: Snapshot, yields: dict[str, JobDecision]) -> list[SchedulableNode]:
    """Return the machines once those who leave have left."""
    free = {machine.name: machine.free for machine in view.machines}
    for each in view.placed:
        gone = each.nodes if each.leaving else each.nodes[each.members :]
        if each.job.key in yields:
            gone = each.nodes[yields[each.job.key].members :]
        for node in gone:
            free[node] = less(free[node], each.job.need, -1)
    return [replace(machine, free=free[machine.name]) for machine in view.machines]


@settings(max_examples=15)
@given(worlds(), seeds)
def test_decisions_do_not_depend_on_the_order_of_what_is_seen(world: World, seed: int) -> None:
    chance = random.Random(seed)
    for _ in play(world, chance):
        pass
    for _ in range(5):
        world.submit(arrival(chance))
    view = replace(world.view(), now_s=world.now_s + 700)
    shuffled = replace(
        view,
        machines=chance.sample(view.machines, len(view.machines)),
        waiting=chance.sample(view.waiting, len(view.waiting)),
        placed=chance.sample(view.placed, len(view.placed)),
    )
    assert decide(shuffled) == decide(view)


@settings(max_examples=8)
@given(seeds)
def test_no_two_jobs_push_each_other_out(seed: int) -> None:
    chance = random.Random(seed)
    world = World(machines(4), {t: TenantQuota(t, chance.choice((1.0, 2.0, 3.0))) for t in TENANTS})
    for tenant in TENANTS:
        for _ in range(8):
            world.submit(ask(tenant, chance.choice((1, 2, 3)), priority=chance.choice((0, 0, 1))))
    pushed: set[tuple[str, str]] = set()
    last_s = 0.0
    for _ in range(60):
        for decision in world.step(310.0):
            if decision.what == "preempt":
                pushed.add((decision.other, decision.key))
                last_s = world.now_s
    assert not {(b, a) for a, b in pushed} & pushed
    assert last_s < 45 * 310.0  # it comes to rest although everybody wants more, for ever


@settings(max_examples=15)
@given(seeds, st.integers(4, 16))
def test_a_gang_waits_no_longer_than_patience_and_what_runs_however_many_small_jobs_come(
    seed: int, members: int
) -> None:
    chance = random.Random(seed)
    world = World(machines(4))
    longest_s, step_s = 900.0, 60.0
    large = None
    for number in range(30):
        if number == 1:  # nobody has waited longer
            large = world.submit(ask("a", members, preemptible=False))
        for tenant in "bcd":
            world.submit(ask(tenant, chance.choice((1, 2)), preemptible=False), chance.uniform(60, longest_s))
        world.step(step_s)
    assert large is not None
    assert world.began[large.key] - large.submitted_s <= PATIENCE_S + longest_s + 3 * step_s


def test_shares_become_proportional_to_weights() -> None:
    chance = random.Random(1)
    weights = {"a": 1.0, "b": 2.0, "c": 3.0}
    world = World(machines(15), {t: TenantQuota(t, w) for t, w in weights.items()})
    held = dict.fromkeys(weights, 0)
    for number in range(200):
        for tenant in weights:
            while sum(each.tenant == tenant for each in world.waiting.values()) < 20:
                world.submit(ask(tenant, chance.choice((1, 2, 3))), chance.uniform(100, 600))
        world.step()
        for each in world.placed.values():
            held[each.job.tenant] += each.members * (number >= 50)
    total = sum(held.values())
    for tenant, weight in weights.items():
        assert abs(held[tenant] / total - weight / 6) < 0.03


@settings(max_examples=10)
@given(worlds(), seeds)
def test_machines_followed_in_columns_are_as_machines_read_anew(world: World, seed: int) -> None:
    chance = random.Random(seed)
    columns = Columns(world.fleet)
    for before, _ in play(world, chance):
        view = before.view()
        gone = {m.name for m in view.machines if chance.random() < 0.2}
        there = [m for m in view.machines if m.name not in gone]
        for machine in there:
            assert columns.update(machine)
        for name in gone:
            columns.drop(name)
        placed = [p for p in view.placed if not gone & set(p.nodes)]
        anew = replace(view, machines=there, placed=placed)
        assert decide(replace(anew, machines=columns)) == decide(anew)


def test_equal_views_give_equal_decisions_and_change_nothing_in_the_view() -> None:
    world = World(machines(2))
    for _ in range(4):
        world.submit(ask(members=3))
    columns = Columns(world.fleet)
    view = replace(world.view(), machines=columns)
    first = decide(view)
    assert decide(view) == first
    assert told(first)
