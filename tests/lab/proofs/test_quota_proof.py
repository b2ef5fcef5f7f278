"""The proof of limits: that it finds what it looks for, and what it finds about eight real processes."""

from __future__ import annotations

import pytest

from windlass.lab.proofs.quota.quota_proof import (
    QuotaTake,
    ended,
    figures,
    max_at_once,
    prove_limits,
    worst_window,
)
from windlass.spec.limits import Limits

LIMITS = Limits(requests_per_second=10, burst=2, tokens_per_day=100, concurrent=2)


def requests(*times: float) -> list[QuotaTake]:
    return [QuotaTake(at, "requests", 1) for at in times]


def test_a_burst_that_is_allowed_is_no_overshoot() -> None:
    assert figures(requests(0.0, 0.0, 0.1, 0.2), LIMITS, 1.0)["overshoot"] == 0


def test_one_request_too_many_anywhere_is_found() -> None:
    assert figures(requests(0.0, 5.0, 5.0, 5.05), LIMITS, 10.0)["overshoot"] == pytest.approx(0.5)


def test_the_worst_window_counts_from_wherever_it_is_worst() -> None:
    assert worst_window(requests(0.0, 1.0, 1.0, 1.0), 1.0) == 3


def test_permits_given_back_at_the_same_moment_make_room() -> None:
    takes = [QuotaTake(0, "permits", 1), QuotaTake(1, "permits", 1), QuotaTake(1, "permits", -1)]
    assert max_at_once(takes) == 1


def test_a_killed_process_has_nothing_in_use_afterwards() -> None:
    takes = ended([QuotaTake(0, "permits", 1), QuotaTake(1, "permits", 1)], at=2.0)
    assert sum(take.amount for take in takes) == 0


@pytest.mark.slow
def test_eight_processes_on_one_database_are_let_in_no_more_than_one(state_url: str) -> None:
    figures = prove_limits(8, 8.0, lambda _: None, state=state_url)["figures"]
    assert figures["overshoot"] == 0
    assert figures["day_overshoot"] == 0
    assert figures["permits_overshoot"] == 0
    assert figures["granted"] > 0
    assert figures["day_granted"] > 0
