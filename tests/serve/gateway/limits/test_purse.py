"""A true Retry-After, on the rules alone: asking then succeeds if nobody else asked, asking earlier fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.limits.quota_lease import TERM_S, QuotaLease
from windlass.serve.records.bucket import DAY_S, LeaseRequest, Rule, exchange, free_after_s, new_budget
from windlass.serve.records.quotas import Received

amounts = st.integers(1, 50)


@given(st.integers(1, 50), st.floats(0.01, 100), st.integers(0, 50), amounts)
def test_a_flow_has_what_is_wanted_after_the_time_that_was_told_and_not_before(
    most: int, per_s: float, spent: int, wanted: int
) -> None:
    rule, spent, wanted = Rule("flow", most, per_s), min(spent, most), min(wanted, most)
    budget, _ = exchange(
        rule, new_budget(rule, 0.0), "a", LeaseRequest(want=spent, need=spent), now=0.0, term_s=1.0
    )
    budget, _ = exchange(rule, budget, "a", LeaseRequest(), now=0.0, term_s=1.0)
    wait_s = free_after_s(rule, budget.left, wanted, 0.0)
    assert wait_s is not None
    asked = LeaseRequest(want=wanted, need=wanted)
    _, later = exchange(rule, budget, "b", asked, now=wait_s + 1e-6, term_s=1.0)
    assert later == wanted
    if wait_s > 1e-3:
        _, earlier = exchange(rule, budget, "b", asked, now=wait_s * 0.999 - 1e-6, term_s=1.0)
        assert earlier < wanted


@given(st.floats(0, 10 * DAY_S), st.integers(1, 100))
def test_a_day_is_full_again_at_midnight(now: float, most: int) -> None:
    rule = Rule("day", most)
    budget, granted = exchange(
        rule, new_budget(rule, now), "a", LeaseRequest(want=most), now=now, term_s=TERM_S
    )
    assert granted == most
    budget, _ = exchange(rule, budget, "a", LeaseRequest(), now=now, term_s=TERM_S)
    wait_s = free_after_s(rule, budget.left, 1, now)
    assert wait_s is not None
    assert 0 < wait_s <= DAY_S
    _, granted = exchange(rule, budget, "a", LeaseRequest(want=most), now=now + wait_s + 1e-3, term_s=TERM_S)
    assert granted == most


@pytest.mark.parametrize("fills", ["flow", "day", "permits"])
def test_what_a_budget_can_never_hold_is_never_free(fills: str) -> None:
    assert free_after_s(Rule(fills, 5, 1.0), 5, 6, 0.0) is None  # type: ignore[arg-type]


def lent(purse: QuotaLease, amount: float, at: float) -> None:
    purse.receive(Received(amount, left=0.0, holders=1, now=1e9), sent_at=at, now=at)


def test_what_is_held_is_worth_nothing_once_its_time_is_over() -> None:
    purse = QuotaLease(Rule("flow", 10, 1.0))
    lent(purse, 5, at=100.0)
    assert purse.has(5, 100.1)
    assert not purse.has(1, 100.0 + TERM_S)


def test_what_a_request_did_not_use_can_be_taken_again() -> None:
    purse = QuotaLease(Rule("flow", 10, 1.0))
    lent(purse, 10, at=100.0)
    purse.take(8, 100.1)
    purse.settle(8, 3, purse.epoch, 100.2)
    assert purse.has(7, 100.3)
    assert not purse.has(8, 100.3)


def test_a_late_settlement_gives_back_nothing_of_a_part_that_was_lost() -> None:
    purse = QuotaLease(Rule("flow", 10, 1.0))
    lent(purse, 10, at=100.0)
    purse.take(8, 100.1)
    epoch = purse.epoch
    lent(purse, 1, at=200.0)
    purse.settle(8, 0, epoch, 200.1)
    assert not purse.has(2, 200.2)
