"""The limits of a plan: a deadline, a budget, and the objective to minimise.

Money is compared by the middle of its range, because prices of one device spread four to ten times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from windlass.plan.cost.money import format_dollars
from windlass.plan.fleet.explore import Objective
from windlass.plan.fleet.run_estimate import RunEstimate
from windlass.spec.errors import BadInput
from windlass.spec.units import format_seconds, parse_seconds

Binding = Literal["memory", "time", "money", "divisibility"]


@dataclass(frozen=True)
class PlanLimits:
    """Objective, deadline and budget."""

    objective: Objective = "time"
    deadline_s: float | None = None
    dollars: float | None = None

    def keeps(self, run: RunEstimate) -> bool:
        return self.late(run) <= 1 and self.dear(run) <= 1

    def late(self, run: RunEstimate) -> float:
        """Time over the deadline, as a factor."""
        return run.seconds / self.deadline_s if self.deadline_s is not None else 0.0

    def dear(self, run: RunEstimate) -> float:
        """Money over the budget, as a factor; infinite if the price is unknown."""
        if self.dollars is None:
            return 0.0
        return float("inf") if run.dollars is None else run.dollars / self.dollars

    def words(self) -> str:
        """Format the limits: "3d 00h and $5,000"."""
        parts = [format_seconds(self.deadline_s)] if self.deadline_s is not None else []
        parts += [format_dollars(self.dollars)] if self.dollars is not None else []
        return " and ".join(parts)


def parse_deadline(text: str, now: datetime) -> float:
    """Read "3d" or a date like "2026-12-24" or "2026-12-24T18:00"; return the seconds that are left.

    A date without a time means its end; one without a zone is in UTC.
    """
    seconds = _until(text, now)
    if seconds is None:
        try:
            seconds = parse_seconds(text)
        except ValueError:
            raise BadInput(
                f"--deadline {text}: neither a duration nor a date", hint="write it like 3d or 2026-12-24"
            ) from None
    if seconds <= 0:
        raise BadInput(
            f"--deadline {text}: is in the past", hint=f"it is {now:%Y-%m-%d %H:%M} UTC; give a later time"
        )
    return seconds


def parse_budget(text: str) -> float:
    """Read "5000", "$5,000" or "2.5M" dollars."""
    scale = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:], 1.0)
    digits = text.strip().lstrip("$").replace(",", "").rstrip("kKMB")
    try:
        dollars = float(digits) * scale
    except ValueError:
        raise BadInput(
            f"--budget {text}: not an amount in dollars", hint="write it like 5000 or 2.5M"
        ) from None
    if not 0 < dollars < float("inf"):
        raise BadInput(f"--budget {text}: must be more than zero dollars")
    return dollars


def _until(text: str, now: datetime) -> float | None:
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        return None
    if "T" not in text and ":" not in text:
        day = day.replace(hour=23, minute=59, second=59)
    return (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp() - now.timestamp()
