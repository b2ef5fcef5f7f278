"""The rules of quotas: what a budget holds, and what gateways may lease of it. Pure: time is an argument.

A budget has `left`, from which any gateway may lease, and loans, each of which one gateway spends from.
Three rules say how it refills: a flow by an amount per second, a day's amount at midnight UTC, permits when
they are returned. One invariant holds after every `renew`:

    left + sum of loans <= rule.capacity

Only leased units are spent, so over any w seconds at most `capacity + per_s * w` are (over any UTC day, or at
any one time, `capacity`), however many gateways there are. docs/service.md has the whole proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from windlass.spec.limits import Limits

DAY_S = 86400.0
SET_BACK_S = 5.0
"""A clock that is behind by more was set back; by less, time stands still until it has caught up."""
Kind = Literal["requests", "tokens_minute", "tokens_day", "concurrent", "queue", "queue_tokens"]


@dataclass(frozen=True)
class Rule:
    """How much a budget holds, and how it refills."""

    fills: Literal["flow", "day", "permits"]
    capacity: float
    per_s: float = 0.0


@dataclass(frozen=True)
class QuotaLoan:
    """What one gateway holds, until the clock of the database says `until`."""

    held: float
    until: float


@dataclass(frozen=True)
class Budget:
    """One budget: what was left at the time `at`, and which gateways hold the rest."""

    left: float
    at: float
    capacity: float
    """The rule's capacity at that time."""
    loans: Mapping[str, QuotaLoan]

    @property
    def lent(self) -> float:
        return math.fsum(loan.held for loan in self.loans.values())


@dataclass(frozen=True)
class LeaseRequest:
    """A gateway's request to renew its lease: it keeps some units, returns some, and wants more.

    Units that it held and neither keeps nor returns are spent. `need` is what the next waiting request lacks:
    less would be of no use.
    """

    keep: float = 0.0
    back: float = 0.0
    want: float = 0.0
    need: float = 0.0


def new_budget(rule: Rule, now: float) -> Budget:
    return Budget(rule.capacity, now, rule.capacity, {})


def renew(
    rule: Rule, budget: Budget, holder: str, order: LeaseRequest, *, now: float, term_s: float
) -> tuple[Budget, float]:
    """Renew one gateway's lease; return the new budget, and how many more units the holder got.

    Input: the budget as the previous `renew` left it. An expired loan counts as spent (permits: as returned),
    because its holder may not use it any more.
    """
    budget = _by_this_clock(budget, now, term_s)
    now = max(now, budget.at)
    loans = {name: loan for name, loan in budget.loans.items() if loan.until > now}
    left = refill(rule, replace(budget, loans=loans), now)
    held = loans.pop(holder).held if holder in loans else 0.0
    keep = order.keep if rule.fills == "permits" else min(order.keep, held)
    left += max(0.0, min(order.back, held - keep))
    left = min(left, rule.capacity - keep - math.fsum(loan.held for loan in loans.values()))
    granted = _share(left, order, len(loans) + 1)
    if keep + granted > 0:
        loans[holder] = QuotaLoan(keep + granted, now + term_s)
    return Budget(left - granted, now, rule.capacity, loans), granted


def refill(rule: Rule, budget: Budget, now: float) -> float:
    """Return what is left at a later time, perhaps under a changed rule.

    Leased units count as if they were still in the budget. A raised limit adds the difference at once; a
    lowered one takes it away, even below zero.
    """
    room = rule.capacity - budget.lent
    if rule.fills == "permits" or (rule.fills == "day" and now // DAY_S > budget.at // DAY_S):
        return room
    return min(room, budget.left + (rule.capacity - budget.capacity) + rule.per_s * (now - budget.at))


def free_after_s(rule: Rule, left: float, wanted: float, now: float) -> float | None:
    """Return the seconds until `wanted` units are left if no other takes any; None if time does not help."""
    if wanted > rule.capacity:
        return None
    if wanted <= left:
        return 0.0
    if rule.fills == "flow":
        return (wanted - left) / rule.per_s
    return DAY_S - now % DAY_S if rule.fills == "day" else None


def rules_of(limits: Limits) -> dict[Kind, Rule]:
    """Return the rules of the budgets that a table of limits defines."""
    minute, day = limits.tokens_per_minute, limits.tokens_per_day
    rules: dict[Kind, Rule] = {}
    if limits.requests_per_second is not None:
        rules["requests"] = Rule("flow", limits.burst_requests, limits.requests_per_second)
    if minute is not None:
        rules["tokens_minute"] = Rule("flow", minute, minute / 60)
    if day is not None:
        rules["tokens_day"] = Rule("day", day)
    permits: dict[Kind, int | None] = {
        "concurrent": limits.concurrent,
        "queue": limits.queue,
        "queue_tokens": limits.queue_tokens,
    }
    return rules | {
        kind: Rule("permits", capacity) for kind, capacity in permits.items() if capacity is not None
    }


def _by_this_clock(budget: Budget, now: float, term_s: float) -> Budget:
    """Continue from a clock that was set back: budgets must not wait until it has caught up to refill."""
    if budget.at - now <= SET_BACK_S:
        return budget
    loans = {name: QuotaLoan(loan.held, min(loan.until, now + term_s)) for name, loan in budget.loans.items()}
    return replace(budget, at=now, loans=loans)


def _share(left: float, order: LeaseRequest, holders: int) -> float:
    """Grant whole units, at most an equal share of the holders, unless one request needs more than that."""
    whole = math.floor(left)
    if whole <= 0:
        return 0.0
    needed = math.ceil(order.need) if order.need <= whole else 0
    return float(max(needed, min(math.floor(order.want), whole, max(1, whole // holders))))
