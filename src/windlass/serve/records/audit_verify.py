"""Verifies the audit log, and deletes old records from it.

Old records are folded: the log is verified, a record with the number and hash of the last of them is appended
in the name of the actor, and they are deleted. The rest starts where that record says, so it still verifies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.serve.records.audit_log import (
    HEAD,
    NOTHING,
    Act,
    Actor,
    AuditRecord,
    append,
    read_head,
    read_records,
)
from windlass.spec.errors import Damaged
from windlass.store.database import Database, Transaction

FOLD = "audit.fold"
PAGE = 5000
MAX_REASONS = 20


@dataclass
class AuditVerdict:
    """The result of verifying the whole log; `reasons` is empty if it is intact."""

    records: int = 0
    first: int = 0
    last: int = 0
    hash: str = NOTHING
    reasons: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.reasons

    def doubt(self, reason: str) -> None:
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)


def verify(database: Database, *, noted: str | None = None) -> AuditVerdict:
    """Check every record, and that a head that was `noted` elsewhere is still one of them."""
    verdict, folds, found = AuditVerdict(), {(0, NOTHING)}, noted in (None, NOTHING)
    opening = None
    for record in _all(database, verdict):
        opening = opening or (record.number - 1, record.before_hash)
        _follow(verdict, record)
        found = found or record.hash == noted
        if record.action == FOLD:
            folds.add(_folded(record))
    if opening is not None and opening not in folds:
        verdict.doubt(f"records 1 to {opening[0]} are missing, and no {FOLD} record accounts for them")
    if not found:
        verdict.doubt(f"no record has the noted head {str(noted)[:16]}...: it was cut off, changed or folded")
    return verdict


def fold(database: Database, actor: Actor, *, older_than_s: float, now_s: float) -> int:
    """Delete the records before a time and append a record that accounts for them; return how many."""
    verdict = verify(database)
    if not verdict.ok:
        raise Damaged(
            f"{database.shown}: the audit log does not verify: {verdict.reasons[0]}",
            hint="nothing was folded",
        )

    def work(transaction: Transaction) -> int:
        query = "SELECT min(number) FROM audit WHERE at_ms >= ? OR number > ?"
        keep_from = transaction.execute(query, round(1000 * older_than_s), verdict.last)[0][0]
        last = verdict.last if keep_from is None else keep_from - 1
        if last < verdict.first or not verdict.records:
            return 0
        sealed = transaction.execute("SELECT hash FROM audit WHERE number = ?", last)[0][0]
        note = json.dumps({"first": verdict.first, "last": last, "hash": sealed})
        append(transaction, actor, Act(FOLD, f"{verdict.first}-{last}", note=note), now_s=now_s)
        transaction.execute("DELETE FROM audit WHERE number <= ?", last)
        return int(last - verdict.first + 1)

    return database.atomically(work, alone=HEAD)


def _all(database: Database, verdict: AuditVerdict) -> Iterator[AuditRecord]:
    """Yield every record, and compare the last with the head; other processes may append meanwhile.

    A record and the head are committed together. So all records up to a head that was read earlier exist, and
    a head that is read later is not behind them, unless records were removed or the head was set back.
    """
    head = read_head(database)
    while page := read_records(database, after=verdict.last, limit=PAGE):
        numbered = [record for record in page if isinstance(record.number, int)]
        yield from numbered
        if len(numbered) < len(page):  # SQLite accepts a text as a number, and sorts it last
            verdict.doubt(f"there is a record after record {verdict.last} that has no number")
            break
        head = read_head(database)
        if head.number == verdict.last:
            break
    if (head.number, head.hash) != (verdict.last, verdict.hash):
        verdict.doubt(f"the head is record {head.number}, but the log ends with record {verdict.last}")


def _follow(verdict: AuditVerdict, record: AuditRecord) -> None:
    if verdict.records and (record.number, record.before_hash) != (verdict.last + 1, verdict.hash):
        verdict.doubt(f"record {record.number} does not follow record {verdict.last}")
    if not record.is_whole:
        verdict.doubt(f"record {record.number} was changed")
    verdict.first = verdict.first or record.number
    verdict.records += 1
    verdict.last, verdict.hash = record.number, record.hash


def _folded(record: AuditRecord) -> tuple[int, str]:
    try:
        note = json.loads(record.note)
        return int(note["last"]), str(note["hash"])
    except (ValueError, KeyError, TypeError):
        return -1, ""
