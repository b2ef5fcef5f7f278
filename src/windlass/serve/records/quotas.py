"""Quotas in the database: what is left of each, and which gateway has how much of the rest on lease.

Input: lease requests of one gateway, all in one transaction. Output: a grant for each, by the database's
clock. The rules are in `bucket`; docs/formats/service-state.md has the tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from windlass.serve.records.bucket import (
    Budget,
    Kind,
    LeaseRequest,
    QuotaLoan,
    Rule,
    new_budget,
    refill,
    renew,
)
from windlass.store.database import Database, Schema, Transaction

QUOTAS = Schema(
    "quotas",
    (
        """CREATE TABLE quota_budgets (scope TEXT NOT NULL, kind TEXT NOT NULL,
        left_units DOUBLE PRECISION NOT NULL, at_s DOUBLE PRECISION NOT NULL,
        max_units DOUBLE PRECISION NOT NULL, PRIMARY KEY (scope, kind))""",
        """CREATE TABLE quota_loans (scope TEXT NOT NULL, kind TEXT NOT NULL, holder TEXT NOT NULL,
        held_units DOUBLE PRECISION NOT NULL, until_s DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (scope, kind, holder))""",
    ),
)
ALL = "all"


class Name(NamedTuple):
    """Which budget: `scope` is "all", "tenant:NAME" or "key:ID"."""

    scope: str
    kind: Kind


@dataclass(frozen=True)
class Received:
    """The reply to a lease request: units granted, and what is left for all gateways."""

    granted: float
    left: float
    holders: int
    now: float
    """By the database's clock."""


@dataclass(frozen=True)
class QuotaState:
    """The present state of a budget, for display."""

    name: Name
    left: float
    lent: float
    holders: int


def renew_leases(
    database: Database, holder: str, requests: Mapping[Name, tuple[Rule, LeaseRequest]], *, term_s: float
) -> dict[Name, Received]:
    """Renew all leases of one gateway in one transaction; nothing changes if it fails."""

    def work(transaction: Transaction) -> dict[Name, Received]:
        now = clock(transaction, database)
        return {
            name: _renew_lease(transaction, holder, name, rule, request, now=now, term_s=term_s)
            for name, (rule, request) in requests.items()
        }

    return database.atomically(work, light=True, alone="quota_loans")


class UnsharedQuotas:
    """The budgets of a single gateway without a database."""

    def __init__(self) -> None:
        self._budgets: dict[Name, Budget] = {}

    def renew_leases(
        self, holder: str, requests: Mapping[Name, tuple[Rule, LeaseRequest]], *, term_s: float
    ) -> dict[Name, Received]:
        now, received = time.time(), {}
        for name, (rule, request) in requests.items():
            before = self._budgets.get(name) or new_budget(rule, now)
            after, granted = renew(rule, before, holder, request, now=now, term_s=term_s)
            self._budgets[name] = after
            received[name] = Received(granted, after.left, len(after.loans), after.at)
        return received


def quota_states(database: Database, rules: Mapping[Name, Rule]) -> list[QuotaState]:
    """Return the present state of budgets; one that was never used is full."""

    def work(transaction: Transaction) -> list[QuotaState]:
        now = clock(transaction, database)
        return [
            _quota_state(name, rule, _load(transaction, name, rule, now), now) for name, rule in rules.items()
        ]

    return database.atomically(work, light=True)


def known_budgets(database: Database) -> dict[Name, Rule]:
    """Return the budgets in the database; the refill rate of a flow is not stored with it."""
    fills: dict[str, Literal["flow", "day", "permits"]] = {"requests": "flow", "tokens_minute": "flow"}
    rows = database.read("SELECT scope, kind, max_units FROM quota_budgets ORDER BY scope, kind")
    return {
        Name(scope, kind): Rule(fills.get(kind, "day" if kind == "tokens_day" else "permits"), capacity)
        for scope, kind, capacity in rows
    }


def forget(database: Database, scope: str) -> None:
    """Delete the budgets of a key or tenant that was removed."""

    def work(transaction: Transaction) -> None:
        for table in ("quota_budgets", "quota_loans"):
            transaction.execute(f"DELETE FROM {table} WHERE scope = ?", scope)

    database.atomically(work, light=True, alone="quota_loans")


def clock(transaction: Transaction, database: Database) -> float:
    """Return the clock that all gateways of this database share: its server's, for SQLite this machine's."""
    if not database.shown.startswith("postgres"):
        return time.time()
    return float(transaction.execute("SELECT extract(epoch FROM clock_timestamp())")[0][0])


def _renew_lease(
    transaction: Transaction,
    holder: str,
    name: Name,
    rule: Rule,
    request: LeaseRequest,
    *,
    now: float,
    term_s: float,
) -> Received:
    before = _load(transaction, name, rule, now)
    after, granted = renew(rule, before, holder, request, now=now, term_s=term_s)
    _save(transaction, name, before, after)
    return Received(granted, after.left, len(after.loans), after.at)


def _load(transaction: Transaction, name: Name, rule: Rule, now: float) -> Budget:
    where, key = "WHERE scope = ? AND kind = ?", (name.scope, name.kind)
    rows = transaction.execute(f"SELECT left_units, at_s, max_units FROM quota_budgets {where}", *key)
    if not rows:
        return new_budget(rule, now)
    loans = transaction.execute(f"SELECT holder, held_units, until_s FROM quota_loans {where}", *key)
    left, at, capacity = rows[0]
    return Budget(left, at, capacity, {holder: QuotaLoan(held, until) for holder, held, until in loans})


def _save(transaction: Transaction, name: Name, before: Budget, after: Budget) -> None:
    transaction.execute(
        "INSERT INTO quota_budgets VALUES (?, ?, ?, ?, ?) ON CONFLICT (scope, kind) DO UPDATE"
        " SET left_units = excluded.left_units, at_s = excluded.at_s, max_units = excluded.max_units",
        name.scope, name.kind, after.left, after.at, after.capacity,
    )  # fmt: skip
    for holder in before.loans.keys() - after.loans.keys():
        transaction.execute(
            "DELETE FROM quota_loans WHERE scope = ? AND kind = ? AND holder = ?",
            name.scope, name.kind, holder,
        )  # fmt: skip
    for holder, loan in _changed(before, after):
        transaction.execute(
            "INSERT INTO quota_loans VALUES (?, ?, ?, ?, ?) ON CONFLICT (scope, kind, holder)"
            " DO UPDATE SET held_units = excluded.held_units, until_s = excluded.until_s",
            name.scope, name.kind, holder, loan.held, loan.until,
        )  # fmt: skip


def _changed(before: Budget, after: Budget) -> Sequence[tuple[str, QuotaLoan]]:
    return [(holder, loan) for holder, loan in after.loans.items() if before.loans.get(holder) != loan]


def _quota_state(name: Name, rule: Rule, budget: Budget, now: float) -> QuotaState:
    now = max(now, budget.at)
    live = {holder: loan for holder, loan in budget.loans.items() if loan.until > now}
    left = refill(rule, replace(budget, loans=live), now)
    return QuotaState(name, left, sum(loan.held for loan in live.values()), len(live))
