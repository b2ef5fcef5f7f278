"""The audit log: who did what, as an append-only chain of hashed records.

A record's hash covers its fields and the hash of the record before it, so an edited, removed or moved record,
or a truncated log, no longer verifies. The head repeats the last number and hash; note it outside of the
database from time to time, since anyone who can write the whole database can build another chain. The record
of a change is appended in its transaction: no change without a record (docs/formats/service-state.md).
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
"""The hash before the first record."""
HEAD = "audit_head"
"""The table to pass as `alone` to a transaction that appends."""
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
    """Who acts: a key (its id and name), or a person at a terminal ("cli USER" without id)."""

    key_id: str
    name: str
    address: str = ""


@dataclass(frozen=True)
class Act:
    """An action, its target and its result: "key.revoke", "ada-laptop", "done"."""

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
        except TypeError:  # SQLite accepts bytes in any column
            return False


_values = attrgetter(*AuditRecord.__dataclass_fields__)


@dataclass(frozen=True)
class ChainHead:
    """The end of the chain."""

    number: int
    hash: str


def append(transaction: Transaction, actor: Actor, act: Act, *, now_s: float) -> AuditRecord:
    """Append a record within the transaction of the change; open that with `alone=HEAD`."""
    head = _head(transaction.execute("SELECT number, hash FROM audit_head"))
    texts = (actor.key_id, actor.name, actor.address, act.action, act.target, act.result, act.note)
    fields: list[str | int] = [head.number + 1, round(1000 * now_s), *map(_plain, texts), head.hash]
    record = _record([*fields, seal(fields)])
    transaction.execute(f"INSERT INTO audit VALUES ({', '.join('?' * 11)})", *_values(record))
    transaction.execute("UPDATE audit_head SET number = ?, hash = ?", record.number, record.hash)
    return record


def write_down(database: Database, actor: Actor, act: Act, *, now_s: float) -> AuditRecord:
    """Append a record of an action that changed no table, such as a refusal."""
    return database.atomically(lambda t: append(t, actor, act, now_s=now_s), alone=HEAD)


def read_head(database: Database) -> ChainHead:
    return _head(database.read("SELECT number, hash FROM audit_head"))


def read_records(database: Database, *, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
    """Return records after number `after`, oldest first."""
    query = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
    return [_record(row) for row in database.read(query, after, limit)]


def newest_records(database: Database, limit: int) -> list[AuditRecord]:
    """Return the last records, oldest first."""
    rows = database.read("SELECT * FROM audit ORDER BY number DESC LIMIT ?", limit)
    return [_record(row) for row in reversed(rows)]


def seal(fields: Sequence[str | int]) -> str:
    """Return the SHA-256 of a record's fields, written as one line of JSON in ASCII."""
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


def _record(fields: Sequence[Any]) -> AuditRecord:
    return AuditRecord(*fields)


def _head(rows: list[Row]) -> ChainHead:
    return ChainHead(*rows[0]) if len(rows) == 1 else ChainHead(-1, "")


def _plain(text: str) -> str:
    """Replace control characters, hide keys and cut long texts."""
    text = re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", hide_keys(text)
    )
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."
