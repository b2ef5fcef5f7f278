"""Budgets in SQLite and in a real PostgreSQL."""

from __future__ import annotations

from windlass.serve.records.bucket import LeaseRequest, Rule
from windlass.serve.records.quotas import ALL, Name, QuotaState, forget, quota_states, renew_leases
from windlass.store.database import Database

TERM_S = 30.0
FLOW = Rule("flow", 100, 0.001)
REQUESTS = Name(ALL, "requests")


def borrow(
    state: Database, holder: str, order: LeaseRequest, rule: Rule = FLOW, name: Name = REQUESTS
) -> float:
    return renew_leases(state, holder, {name: (rule, order)}, term_s=TERM_S)[name].granted


def test_what_one_gateway_holds_no_other_can_have(state: Database) -> None:
    assert borrow(state, "a", LeaseRequest(want=70, need=70)) == 70
    assert borrow(state, "b", LeaseRequest(want=70)) == 15  # half of what is left is a's part
    assert borrow(state, "b", LeaseRequest(keep=15, need=70)) == 0


def test_what_is_given_back_is_there_for_others(state: Database) -> None:
    borrow(state, "a", LeaseRequest(want=100, need=100))
    borrow(state, "a", LeaseRequest(back=40, keep=60))
    assert borrow(state, "b", LeaseRequest(need=40)) == 40


def test_an_unused_budget_is_full(state: Database) -> None:
    assert quota_states(state, {REQUESTS: FLOW}) == [QuotaState(REQUESTS, 100, 0, 0)]


def test_budgets_report_what_is_left_and_leased(state: Database) -> None:
    borrow(state, "a", LeaseRequest(need=30))
    (standing,) = quota_states(state, {REQUESTS: FLOW})
    assert round(standing.left) == 70
    assert (standing.lent, standing.holders) == (30, 1)


def test_orders_of_several_budgets_are_carried_out_together(state: Database) -> None:
    permits = Name("key:k", "concurrent")
    orders = {REQUESTS: (FLOW, LeaseRequest(need=3)), permits: (Rule("permits", 2), LeaseRequest(need=2))}
    received = renew_leases(state, "a", orders, term_s=TERM_S)
    assert {name: one.granted for name, one in received.items()} == {REQUESTS: 3, permits: 2}


def test_a_key_that_is_gone_leaves_nothing(state: Database) -> None:
    name = Name("key:k", "tokens_day")
    borrow(state, "a", LeaseRequest(need=5), Rule("day", 10), name)
    forget(state, "key:k")
    assert quota_states(state, {name: Rule("day", 10)}) == [QuotaState(name, 10, 0, 0)]
