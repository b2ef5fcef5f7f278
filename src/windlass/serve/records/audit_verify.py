"""Whether the audit log is still what was written, and how old records leave it.

Old records are folded: the log is checked, a record that names the last of them and its hash is appended by
whoever signs for it, and they are deleted. What remains begins where that record says, and so still verifies.
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
    """What a look at the whole log found; `reasons` is empty if it is as it was written."""

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
    """Check every record; and that a head which was `noted` elsewhere is still among them."""
    verdict, folds, found = AuditVerdict(), {(0, NOTHING)}, noted in (None, NOTHING)
    opening = None
    for record in _all(database, verdict):
        opening = opening or (record.number - 1, record.before_hash)
        _follow(verdict, record)
        found = found or record.hash == noted
        if record.action == FOLD:
            folds.add(_folded(record))
    if opening is not None and opening not in folds:
        verdict.doubt(f"records 1 to {opening[0]} are gone, and no {FOLD} record tells of it")
    if not found:
        verdict.doubt(
            f"the noted head {str(noted)[:16]}... is no record's: it was cut off, changed or folded away"
        )
    return verdict


def fold(database: Database, actor: Actor, *, older_than_s: float, now_s: float) -> int:
    """Delete the records of before a time, with a record that signs for them; return how many."""
    verdict = verify(database)
    if not verdict.ok:
        raise Damaged(
            f"{database.shown}: the audit log is not whole: {verdict.reasons[0]}", hint="nothing was folded"
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
    """Yield every record, and compare the last with the head. Others may append meanwhile.

    A record and the head are committed together, so all up to a head that was read before are there, and a
    head that is read after them is not behind them; unless somebody took some away, or set the head back.
    """
    head = read_head(database)
    while page := read_records(database, after=verdict.last, most=PAGE):
        numbered = [record for record in page if isinstance(record.number, int)]
        yield from numbered
        if len(numbered) < len(page):  # SQLite takes a text for a number, and puts it last
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
        told = json.loads(record.note)
        return int(told["last"]), str(told["hash"])
    except (ValueError, KeyError, TypeError):
        return -1, ""
