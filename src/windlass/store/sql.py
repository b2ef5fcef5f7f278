"""The interface of a SQL database, implemented for SQLite and PostgreSQL.

Statements are written once, with `?` for values, in the SQL that SQLite and PostgreSQL share: TEXT, BIGINT,
DOUBLE PRECISION, `ON CONFLICT ... DO UPDATE`, `RETURNING`. Transactions are serialisable. A transaction that
conflicts with another is rolled back, and `atomically` runs it again.

    db.read("SELECT name FROM keys WHERE tenant = ?", "ada")
    db.write("DELETE FROM keys WHERE name = ?", "old")
    db.atomically(lambda t: t.execute("UPDATE accounts SET left_tokens = left_tokens - ?", 5))
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from windlass.spec.errors import StoreFailed

T = TypeVar("T")
Row = tuple[Any, ...]

PATIENCE_S = 10.0
"""Longest wait for another writer, or for a server's answer."""
ATTEMPTS = 30
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


class Conflict(StoreFailed):
    """Another transaction committed first, or inserted the same row. This one was rolled back."""


class Transaction(Protocol):
    """Statements that take effect together, or not at all."""

    def execute(self, sql: str, *args: object) -> list[Row]:
        """Run one statement and return its rows, if it has any."""


class Database(ABC):
    """A database that many threads and processes use at once.

    A `light` transaction is for records that change many times a second, such as leases: it survives the
    death of any process, but a power cut may lose the last of them, and `revision` does not count it. `alone`
    names a table to lock: other writers then wait for their turn instead of failing with a conflict.
    """

    shown: str
    """Where it is, fit for errors and logs: without user and password."""

    @abstractmethod
    def read(self, sql: str, *args: object) -> list[Row]:
        """Return the rows of one query."""

    @abstractmethod
    def transaction(self, *, light: bool = False, alone: str = "") -> AbstractContextManager[Transaction]:
        """Open a transaction: the end of the block commits, an exception rolls back. May raise Conflict."""

    @abstractmethod
    def revision(self) -> int | None:
        """Return a number that changes with every commit of any process; None if it is unknown.

        Cheap enough to call before every use of a cached read. Take the number before reading.
        """

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Return whether there is a table of that name."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def write(self, sql: str, *args: object, light: bool = False) -> list[Row]:
        """Run one statement in a transaction of its own and return its rows, if it has any."""
        return self.atomically(lambda transaction: transaction.execute(sql, *args), light=light)

    def atomically(self, work: Callable[[Transaction], T], *, light: bool = False, alone: str = "") -> T:
        """Run `work` in a transaction, again from the start after a conflict; return what it returns."""
        pause_s = FIRST_PAUSE_S
        for _ in range(ATTEMPTS - 1):
            try:
                with self.transaction(light=light, alone=alone) as transaction:
                    return work(transaction)
            except Conflict:
                time.sleep(random.uniform(0, pause_s))  # losers that wait equally long would meet again
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        with self.transaction(light=light, alone=alone) as transaction:
            return work(transaction)
