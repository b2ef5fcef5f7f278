"""The guarantee of leases, on a model: several gateways, one budget, lost messages and crashes.

Time is simulated. Orders arrive late, answers arrive later or never, gateways die, and every gateway's clock
has an offset and a speed of its own, within what quota_lease.py allows for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.serve.gateway.limits.quota_lease import CLOCKS_DIFFER, TERM_S, QuotaLease
from windlass.serve.records.bucket import DAY_S, Budget, LeaseRequest, Rule, new_budget, renew
from windlass.serve.records.quotas import Received

ROUNDING = 1e-6
GATEWAYS = 3


@dataclass
class Charge:
    """What one request was admitted for, at a true time, less what it returned later."""

    at: float
    amount: float


@dataclass
class Gateway:
    """A holder with its own clock, a request that it has sent and a reply that it has not yet applied."""

    name: str
    offset: float
    speed: float
    lease: QuotaLease
    sent: tuple[LeaseRequest, float] | None = None
    received_reply: tuple[Received, float] | None = None
    running: list[tuple[Charge, int]] = field(default_factory=list)

    def clock(self, true: float) -> float:
        return self.offset + self.speed * true


class World:
    """One database and its gateways; every step advances the true time."""

    def __init__(self, rule: Rule, clocks: list[tuple[float, float]], start: float) -> None:
        self.rule, self.now = rule, start
        self.budget: Budget = new_budget(rule, start)
        self.gateways = [
            Gateway(f"g{n}", offset, speed, QuotaLease(rule)) for n, (offset, speed) in enumerate(clocks)
        ]
        self.charges: list[Charge] = []
        self.born = len(clocks)

    def step(self, what: str, gateway: Gateway, amount: float) -> None:
        clock = gateway.clock(self.now)
        match what:
            case "take" if gateway.lease.has(amount, clock):
                gateway.lease.take(amount, clock)
                charge = Charge(self.now, amount)
                self.charges.append(charge)
                gateway.running.append((charge, gateway.lease.epoch))
            case "take":
                gateway.lease.expect(amount)
            case "trade":
                for part in ("send", "renew", "receive"):
                    self.step(part, gateway, amount)
            case "send" if gateway.sent is None and gateway.received_reply is None:
                gateway.sent = gateway.lease.order(clock), clock
            case "renew" if gateway.sent is not None:
                self._exchange(gateway)
            case "receive" if gateway.received_reply is not None:
                gateway.lease.receive(*gateway.received_reply, clock)
                gateway.received_reply = None
            case "lose":
                gateway.sent = gateway.received_reply = None
            case "settle" if gateway.running:
                self._settle(gateway, amount)
            case "die":
                self._replace(gateway)

    def _exchange(self, gateway: Gateway) -> None:
        assert gateway.sent is not None
        (order, sent_at), gateway.sent = gateway.sent, None
        self.budget, granted = renew(self.rule, self.budget, gateway.name, order, now=self.now, term_s=TERM_S)
        assert self.budget.left + self.budget.lent <= self.rule.capacity + ROUNDING
        received = Received(granted, self.budget.left, len(self.budget.loans), self.now)
        gateway.received_reply = received, sent_at

    def _settle(self, gateway: Gateway, amount: float) -> None:
        charge, epoch = gateway.running.pop(0)
        spent = 0.0 if self.rule.fills == "permits" else min(amount, charge.amount)
        gateway.lease.settle(charge.amount, spent, epoch, gateway.clock(self.now))
        charge.amount = spent

    def _replace(self, gateway: Gateway) -> None:
        """Another process takes its place; the clients of the dead one are gone, and their permits too."""
        self.born += 1
        if self.rule.fills == "permits":
            for charge, _ in gateway.running:
                charge.amount = 0.0
        at = self.gateways.index(gateway)
        self.gateways[at] = Gateway(f"g{self.born}", gateway.offset, gateway.speed, QuotaLease(self.rule))


ACTIONS = {"take": 8, "trade": 3, "send": 2, "renew": 2, "receive": 2, "settle": 3, "lose": 0.3, "die": 0.2}
PAUSES_S = (0.0, 0.0, 0.0, 0.01, 0.05, 0.3, 1.1, 3.5)
STEPS = 250
seeds = st.integers(0, 2**32)


def a_world(rule: Rule, rng: random.Random, start: float) -> World:
    """Every clock has the maximum offset and drift."""
    clocks = [
        (rng.uniform(-1e6, 1e6), 1 + rng.choice((-1, 0, 1)) * CLOCKS_DIFFER / 2) for _ in range(GATEWAYS)
    ]
    return World(rule, clocks, start)


def steps(world: World, rng: random.Random, pauses_s: Sequence[float] = PAUSES_S) -> Iterator[None]:
    for action in rng.choices(list(ACTIONS), list(ACTIONS.values()), k=STEPS):
        world.now += rng.choice(pauses_s)
        world.step(action, rng.choice(world.gateways), float(rng.randint(1, 6)))
        yield


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(1, 20), st.floats(0.1, 50))
def test_no_window_of_a_flow_has_more_than_its_burst_and_its_rate(
    seed: int, capacity: int, per_s: float
) -> None:
    rng = random.Random(seed)
    world = a_world(Rule("flow", capacity, per_s), rng, start=1e9)
    assert sum(1 for _ in steps(world, rng)) == STEPS
    for first, begin in enumerate(world.charges):
        spent = 0.0
        for charge in world.charges[first:]:
            spent += charge.amount
            assert spent <= capacity + per_s * (charge.at - begin.at) + ROUNDING


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 200))
def test_no_day_has_more_than_its_amount(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    world = a_world(Rule("day", capacity), rng, start=20_000 * DAY_S - 60)
    assert sum(1 for _ in steps(world, rng)) == STEPS
    for day in {charge.at // DAY_S for charge in world.charges}:
        assert sum(charge.amount for charge in world.charges if charge.at // DAY_S == day) <= capacity


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 40))
def test_no_more_permits_are_in_use_than_there_are_while_gateways_renew_in_time(
    seed: int, capacity: int
) -> None:
    rng = random.Random(seed)
    world = a_world(Rule("permits", capacity), rng, start=1e9)
    for _ in steps(world, rng, pauses_s=(0.0, 0.01)):  # all of it within one term
        assert sum(charge.amount for charge in world.charges) <= capacity


def test_permits_of_a_gateway_that_was_cut_off_are_made_up_for_when_it_is_back() -> None:
    rule = Rule("permits", 4)
    budget, granted = renew(
        rule, new_budget(rule, 0.0), "cut off", LeaseRequest(want=4), now=0.0, term_s=TERM_S
    )
    assert granted == 4
    budget, granted = renew(rule, budget, "other", LeaseRequest(want=4), now=TERM_S + 1, term_s=TERM_S)
    assert granted == 4
    budget, granted = renew(rule, budget, "cut off", LeaseRequest(keep=3), now=TERM_S + 2, term_s=TERM_S)
    assert budget.left == -3
    budget, granted = renew(
        rule, budget, "other", LeaseRequest(keep=2, want=2), now=TERM_S + 3, term_s=TERM_S
    )
    assert granted == 0


def test_a_clock_that_is_set_back_does_not_stop_a_budget_from_filling() -> None:
    rule = Rule("flow", 10, 1.0)
    budget, _ = renew(rule, new_budget(rule, 1e6), "a", LeaseRequest(want=10), now=1e6, term_s=TERM_S)
    for second in range(1, 11):
        order = LeaseRequest(want=10)
        budget, granted = renew(rule, budget, "a", order, now=1e6 - 3600 + second, term_s=TERM_S)
    assert granted == 1


def test_a_limit_that_is_raised_gives_the_difference_at_once_and_one_that_is_lowered_takes_it() -> None:
    budget, _ = renew(
        Rule("day", 10), new_budget(Rule("day", 10), 0.0), "a", LeaseRequest(want=10), now=0, term_s=1
    )
    budget, _ = renew(Rule("day", 10), budget, "a", LeaseRequest(), now=0, term_s=1)
    _, granted = renew(Rule("day", 25), budget, "a", LeaseRequest(want=20), now=1, term_s=1)
    assert granted == 15
    lowered, granted = renew(Rule("day", 4), budget, "a", LeaseRequest(want=20), now=1, term_s=1)
    assert granted == 0
    assert lowered.left == -6
