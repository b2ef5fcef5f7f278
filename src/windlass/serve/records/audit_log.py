"""Who did what: records that are only added, each of which seals the one before it.

A record's hash covers its fields and the hash of the record before, so a record that was edited, removed,
put elsewhere or cut off at the end no longer fits. The head repeats the last number and hash; note it
elsewhere from time to time, since whoever may write the whole database can make another chain. The record of
a change is appended in its transaction: there is no change without one (docs/formats/service-state.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from windlass.serve.records.redaction import hide_keys
from windlass.store.database import Database, Row, Schema, Transaction

NOTHING = "0" * 64
"""What the first record seals."""
HEAD = "audit_head"
"""The table that whoever appends names as `alone`."""
MAX_CHARS = 500
AUDIT = Schema(
    "audit",
    (
        """CREATE TABLE audit (number BIGINT PRIMARY KEY, at_ms BIGINT NOT NULL, key_id TEXT NOT NULL,
        who TEXT NOT NULL, address TEXT NOT NULL, action TEXT NOT NULL, target TEXT NOT NULL,
        result TEXT NOT NULL, note TEXT NOT NULL, before_hash TEXT NOT NULL, hash TEXT NOT NULL)""",
        "CREATE TABLE audit_head (number BIGINT NOT NULL, hash TEXT NOT NULL)",
        f"INSERT INTO audit_head VALUES (0, '{NOTHING}')",
    ),
)


@dataclass(frozen=True)
class Actor:
    """Who does something: a key (its id and name), or a person at a terminal ("cli USER" without id)."""

    key_id: str
    name: str
    address: str = ""


@dataclass(frozen=True)
class Act:
    """What somebody did, to what, and how it went: "key.revoke", "ada-laptop", "done"."""

    action: str
    target: str
    result: str = "done"
    note: str = ""


@dataclass(frozen=True)
class AuditRecord:
    """One record, in the order of its columns."""

    number: int
    at_ms: int
    key_id: str
    who: str
    address: str
    action: str
    target: str
    result: str
    note: str
    before_hash: str
    hash: str

    @property
    def is_whole(self) -> bool:
        try:
            return bool(self.hash == seal(_values(self)[:-1]))
        except TypeError:  # SQLite holds bytes in any column, if somebody writes them there
            return False


_values = attrgetter(*AuditRecord.__dataclass_fields__)


@dataclass(frozen=True)
class ChainHead:
    """The end of the chain."""

    number: int
    hash: str


def append(transaction: Transaction, actor: Actor, act: Act, *, now_s: float) -> AuditRecord:
    """Add a record within the transaction of what it tells; open that with `alone=HEAD`."""
    head = _head(transaction.execute("SELECT number, hash FROM audit_head"))
    told = (actor.key_id, actor.name, actor.address, act.action, act.target, act.result, act.note)
    fields: list[str | int] = [head.number + 1, round(1000 * now_s), *map(_plain, told), head.hash]
    record = _record([*fields, seal(fields)])
    transaction.execute(f"INSERT INTO audit VALUES ({', '.join('?' * 11)})", *_values(record))
    transaction.execute("UPDATE audit_head SET number = ?, hash = ?", record.number, record.hash)
    return record


def write_down(database: Database, actor: Actor, act: Act, *, now_s: float) -> AuditRecord:
    """Add a record of something that changed no table, such as a refusal."""
    return database.atomically(lambda t: append(t, actor, act, now_s=now_s), alone=HEAD)


def read_head(database: Database) -> ChainHead:
    return _head(database.read("SELECT number, hash FROM audit_head"))


def read_records(database: Database, *, after: int = 0, most: int = 1000) -> list[AuditRecord]:
    """Return records behind number `after`, oldest first."""
    query = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
    return [_record(row) for row in database.read(query, after, most)]


def newest_records(database: Database, most: int) -> list[AuditRecord]:
    """Return the last records, oldest first."""
    rows = database.read("SELECT * FROM audit ORDER BY number DESC LIMIT ?", most)
    return [_record(row) for row in reversed(rows)]


def seal(fields: Sequence[str | int]) -> str:
    """Return the SHA-256 of a record's fields, written as one line of JSON in ASCII."""
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


def _record(fields: Sequence[Any]) -> AuditRecord:
    return AuditRecord(*fields)


def _head(rows: list[Row]) -> ChainHead:
    return ChainHead(*rows[0]) if len(rows) == 1 else ChainHead(-1, "")


def _plain(text: str) -> str:
    """Keep a text from breaking lines, tables or databases; no key is ever written down."""
    text = re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", hide_keys(text)
    )
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."
