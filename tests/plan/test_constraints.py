"""Deadlines and budgets as people write them."""

from datetime import UTC, datetime

import pytest

from windlass.plan.fleet.constraints import parse_budget, parse_deadline
from windlass.spec.errors import BadInput

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3d", 3 * 86400),
        ("1h30m", 5400),
        ("2026-11-17T12:00", 86400),
        ("2026-11-17T13:00+01:00", 86400),
        ("2026-11-16", 12 * 3600 - 1),
    ],
)
def test_a_deadline_is_a_duration_or_a_date(text: str, seconds: float) -> None:
    assert parse_deadline(text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-15", "in the past"),
        ("2020-01-01T00:00", "in the past"),
        ("0", "in the past"),
        ("soon", "neither"),
    ],
)
def test_a_deadline_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        parse_deadline(text, NOW)


@pytest.mark.parametrize(
    ("text", "dollars"), [("5000", 5000), ("$5,000", 5000), ("2.5M", 2.5e6), ("10k", 1e4)]
)
def test_a_budget_is_an_amount(text: str, dollars: float) -> None:
    assert parse_budget(text) == dollars


@pytest.mark.parametrize("text", ["0", "-5", "much", "", "nan"])
def test_a_budget_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--budget"):
        parse_budget(text)
