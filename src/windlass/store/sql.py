"""What every SQL database must do for us, whichever it is.

Statements are written once, with `?` for values, in what SQLite and PostgreSQL both speak: TEXT, BIGINT,
DOUBLE PRECISION, `ON CONFLICT ... DO UPDATE`, `RETURNING`. A transaction is serialisable: it is as if no
other ran meanwhile. One that lost against another did nothing, and `atomically` does it again.

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
    """Another transaction came first, or made the row that this one wanted to make. Nothing was done."""


class Transaction(Protocol):
    """Statements that take effect together, or not at all."""

    def execute(self, sql: str, *args: object) -> list[Row]:
        """Run one statement and return its rows, if it has any."""


class Database(ABC):
    """A database that many threads and processes use at once.

    A `light` transaction is for records that change many times a second, such as leases: it survives the
    death of any process, a power cut may take the last of them, and `revision` does not count it. Naming the
    table that is written as `alone` makes others wait for their turn, where they would lose and try again.
    """

    shown: str
    """Where it is, fit for errors and logs: without user and password."""

    @abstractmethod
    def read(self, sql: str, *args: object) -> list[Row]:
        """Return the rows of one query."""

    @abstractmethod
    def transaction(self, *, light: bool = False, alone: str = "") -> AbstractContextManager[Transaction]:
        """Open a transaction: the end of the block commits, an exception undoes. May raise Conflict."""

    @abstractmethod
    def revision(self) -> int | None:
        """Return a number that differs once somebody committed since; None if that cannot be told.

        Cheap enough to ask before every use of what was read earlier. Take the number before reading.
        """

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Tell whether there is a table of that name."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections."""

    def write(self, sql: str, *args: object, light: bool = False) -> list[Row]:
        """Run one statement in a transaction of its own and return its rows, if it has any."""
        return self.atomically(lambda transaction: transaction.execute(sql, *args), light=light)

    def atomically(self, work: Callable[[Transaction], T], *, light: bool = False, alone: str = "") -> T:
        """Do `work` in a transaction, again from the start if another came first; return what it returns."""
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
