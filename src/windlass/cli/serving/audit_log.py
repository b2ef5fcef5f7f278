"""`windlass audit-log`: show who changed what in a service, and verify that the log is intact."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from windlass.cli.serving.state_argument import described, duration, opened_state, person, when
from windlass.cli.terminal import print_json, print_table
from windlass.serve.records.audit_log import AuditRecord, newest_records, read_head
from windlass.serve.records.audit_verify import AuditVerdict, fold, verify
from windlass.spec.errors import AskedWrongly

EPILOG = """\
Every record contains the hash of the one before it. Store the head elsewhere from time to time: then even a
writer of the database cannot change the history unnoticed.

examples:
  windlass audit-log show --limit 20
  windlass audit-log head                                number and hash of the last record
  windlass audit-log verify --head 9f2c...               exit code 1 if anything was changed or cut off
  windlass audit-log fold --older-than 365d              remove old records; the rest still verifies
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    shown = described(verbs, "show", "show the newest records", ["audit-log show --limit 100 --json"])
    shown.add_argument("--limit", type=int, default=50, metavar="N", help="number of records (default: 50)")
    shown.set_defaults(run=run_show)
    checked = described(
        verbs, "verify", "check every record", ["audit-log verify", "audit-log verify --head HASH"]
    )
    checked.add_argument(
        "--head", metavar="HASH", help="a head stored earlier, which must still be in the log"
    )
    checked.set_defaults(run=run_verify)
    described(
        verbs, "head", "print the head of the log, to be stored elsewhere", ["audit-log head"]
    ).set_defaults(run=run_head)
    folded = described(verbs, "fold", "remove old records", ["audit-log fold --older-than 365d"])
    folded.add_argument("--older-than", required=True, metavar="TIME", help="e.g. 365d")
    folded.set_defaults(run=run_fold)


def run_show(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise AskedWrongly(f"--limit {args.limit}: must be at least 1")
    with opened_state(args) as state:
        records = newest_records(state, args.limit)
    if args.json:
        print_json([asdict(record) for record in records])
    elif not records:
        print("the audit log is empty")
    else:
        print_table(
            [_row(record) for record in records], ("number", "when", "who", "from", "what", "result", "note")
        )
    return 0


def run_verify(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        verdict = verify(state, noted=args.head)
    if args.json:
        print_json({"ok": verdict.ok, **asdict(verdict)})
    else:
        for line in _lines(verdict):
            print(line)
    return 0 if verdict.ok else 1


def run_head(args: argparse.Namespace) -> int:
    with opened_state(args) as state:
        head = read_head(state)
    print_json(asdict(head)) if args.json else print(f"{head.number} {head.hash}")
    return 0


def run_fold(args: argparse.Namespace) -> int:
    now_s = time.time()
    age_s = duration(args.older_than, "--older-than")
    with opened_state(args) as state:
        count = fold(state, person(), older_than_s=now_s - age_s, now_s=now_s)
    print_json({"folded": count}) if args.json else print(f"{count} record{'s' * (count != 1)} folded")
    return 0


def _row(record: AuditRecord) -> tuple[object, ...]:
    who = f"{record.who} ({record.key_id})" if record.key_id else record.who
    what = f"{record.action} {record.target}".rstrip()
    return record.number, when(record.at_ms / 1000), who, record.address, what, record.result, record.note


def _lines(verdict: AuditVerdict) -> list[str]:
    if not verdict.ok:
        return ["the audit log was changed:", *(f"- {reason}" for reason in verdict.reasons)]
    if not verdict.records:
        return ["the audit log is empty"]
    return [
        f"the audit log is intact: records {verdict.first} to {verdict.last}",
        f"head: {verdict.last} {verdict.hash}",
    ]
