"""A true Retry-After: a retry then succeeds if no other request came, an earlier one fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.limits.quota_lease import TERM_S, QuotaLease
from windlass.serve.records.bucket import DAY_S, LeaseRequest, Rule, free_after_s, new_budget, renew
from windlass.serve.records.quotas import Received

amounts = st.integers(1, 50)


@given(st.integers(1, 50), st.floats(0.01, 100), st.integers(0, 50), amounts)
def test_a_rate_refills_after_the_announced_time_and_not_before(
    capacity: int, per_s: float, spent: int, wanted: int
) -> None:
    rule, spent, wanted = Rule("flow", capacity, per_s), min(spent, capacity), min(wanted, capacity)
    budget, _ = renew(
        rule, new_budget(rule, 0.0), "a", LeaseRequest(want=spent, need=spent), now=0.0, term_s=1.0
    )
    budget, _ = renew(rule, budget, "a", LeaseRequest(), now=0.0, term_s=1.0)
    wait_s = free_after_s(rule, budget.left, wanted, 0.0)
    assert wait_s is not None
    request = LeaseRequest(want=wanted, need=wanted)
    _, later = renew(rule, budget, "b", request, now=wait_s + 1e-6, term_s=1.0)
    assert later == wanted
    if wait_s > 1e-3:
        _, earlier = renew(rule, budget, "b", request, now=wait_s * 0.999 - 1e-6, term_s=1.0)
        assert earlier < wanted


@given(st.floats(0, 10 * DAY_S), st.integers(1, 100))
def test_a_day_is_full_again_at_midnight(now: float, capacity: int) -> None:
    rule = Rule("day", capacity)
    budget, granted = renew(
        rule, new_budget(rule, now), "a", LeaseRequest(want=capacity), now=now, term_s=TERM_S
    )
    assert granted == capacity
    budget, _ = renew(rule, budget, "a", LeaseRequest(), now=now, term_s=TERM_S)
    wait_s = free_after_s(rule, budget.left, 1, now)
    assert wait_s is not None
    assert 0 < wait_s <= DAY_S
    _, granted = renew(rule, budget, "a", LeaseRequest(want=capacity), now=now + wait_s + 1e-3, term_s=TERM_S)
    assert granted == capacity


@pytest.mark.parametrize("fills", ["flow", "day", "permits"])
def test_what_a_budget_can_never_hold_is_never_free(fills: str) -> None:
    assert free_after_s(Rule(fills, 5, 1.0), 5, 6, 0.0) is None  # type: ignore[arg-type]


def lent(lease: QuotaLease, amount: float, at: float) -> None:
    lease.receive(Received(amount, left=0.0, holders=1, now=1e9), sent_at=at, now=at)


def test_what_is_held_is_worth_nothing_once_its_time_is_over() -> None:
    lease = QuotaLease(Rule("flow", 10, 1.0))
    lent(lease, 5, at=100.0)
    assert lease.has(5, 100.1)
    assert not lease.has(1, 100.0 + TERM_S)


def test_what_a_request_did_not_use_can_be_taken_again() -> None:
    lease = QuotaLease(Rule("flow", 10, 1.0))
    lent(lease, 10, at=100.0)
    lease.take(8, 100.1)
    lease.settle(8, 3, lease.epoch, 100.2)
    assert lease.has(7, 100.3)
    assert not lease.has(8, 100.3)


def test_a_late_settlement_gives_back_nothing_of_a_part_that_was_lost() -> None:
    lease = QuotaLease(Rule("flow", 10, 1.0))
    lent(lease, 10, at=100.0)
    lease.take(8, 100.1)
    epoch = lease.epoch
    lent(lease, 1, at=200.0)
    lease.settle(8, 0, epoch, 200.1)
    assert not lease.has(2, 200.2)
