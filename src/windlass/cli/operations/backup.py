"""`windlass backup`: make, list, verify, prune and schedule backups of a home directory."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from typing import Any

from windlass.backup.contents import FOLDER
from windlass.backup.make import make
from windlass.backup.prune import prune
from windlass.backup.schedule import BackupSchedule
from windlass.backup.verify import verify
from windlass.cli.home import home_of
from windlass.cli.operations.backup_argument import (
    add_backup,
    add_making,
    add_parallel,
    options_of,
    repository_of,
    settings_of,
)
from windlass.cli.terminal import print_json, print_table
from windlass.runs.progress_line import ProgressLine
from windlass.spec.backup import Backup, Keep
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse
from windlass.spec.units import format_bytes, format_seconds
from windlass.store.lock import locked

EPILOG = """\
A backup holds models with their aliases, runs with their checkpoints, the service's keys and records, and
corpus metadata. Only changes are sent; an interrupted backup resumes. HOME/backup.toml has the settings.

examples:
  windlass backup make s3://bucket/home                 once; sends only changes
  windlass backup make /mnt/disk/home --key-file key    encrypted
  windlass backup list s3://bucket/home
  windlass backup verify s3://bucket/home               restore to a scratch directory, compare, query a model
  windlass backup prune s3://bucket/home --last 7 --daily 30
  windlass backup schedule s3://bucket/home --every 1h  keep running: make and prune
  windlass restore s3://bucket/home                     restore it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    made = _verb(verbs, "make", "send changes as a new snapshot", "backup make s3://bucket/home", run_make)
    add_making(made)
    _verb(verbs, "list", "list the snapshots of a backup", "backup list s3://bucket/home --json", run_list)
    checked = _verb(
        verbs, "verify", "restore to a scratch directory, compare every digest, query a model",
        "backup verify s3://bucket/home --snapshot 20261117", run_verify,
    )  # fmt: skip
    checked.add_argument(
        "--snapshot", metavar="ID", help="snapshot id or a prefix of it (default: the newest)"
    )
    checked.add_argument("--no-ask", action="store_true", help="compare only; do not query a model")
    add_parallel(checked)
    pruned = _verb(
        verbs, "prune", "delete old snapshots and the data that only they use",
        "backup prune s3://bucket/home --last 7 --daily 7 --dry-run", run_prune,
    )  # fmt: skip
    pruned.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    again = _verb(
        verbs, "schedule", "make and prune snapshots at intervals, until stopped",
        "backup schedule s3://bucket/home --every 1h", run_schedule,
    )  # fmt: skip
    again.add_argument("--every", metavar="TIME", help="interval between snapshots (default: 1h)")
    again.add_argument("--times", type=int, metavar="N", help="stop after N snapshots (default: never)")
    add_making(again)
    for verb in (pruned, again):
        _add_keep(verb)


def run_make(args: argparse.Namespace) -> int:
    settings, line = settings_of(args), ProgressLine(quiet=args.json)
    repository = repository_of(args, settings, create=True)
    with _alone(args):
        done = make(home_of(args), repository, options_of(args, settings), line)
    line.close()
    for reason in done.snapshot.left_out:
        line.say(f"left out: {reason}")
    if args.json:
        print_json(done.facts())
    else:
        size, sent = format_bytes(done.snapshot.bytes), format_bytes(done.sent.sent_bytes)
        print(f"snapshot {done.snapshot.id}: {len(done.snapshot.files)} files, {size};"
              f" sent {sent} in {format_seconds(done.seconds)}")  # fmt: skip
    return 0


def run_list(args: argparse.Namespace) -> int:
    repository = repository_of(args, settings_of(args))
    found = [repository.read(id_) for id_ in repository.ids()]
    if args.json:
        held = repository.chunks()
        stored = {"chunks": len(held), "bytes": sum(held.values()), "encrypted": repository.is_sealed}
        print_json({"snapshots": [each.facts() for each in found], "stored": stored})
    elif not found:
        print("no snapshot yet; `windlass backup make` makes one")
    else:
        rows = [(s.id, _when(s.made_s), len(s.files), format_bytes(s.bytes), s.host) for s in found]
        print_table(rows, ("snapshot", "made", "files", "size", "host"))
    return 0


def run_verify(args: argparse.Namespace) -> int:
    settings, line = settings_of(args), ProgressLine(quiet=args.json)
    repository = repository_of(args, settings)
    found = verify(
        repository,
        home_of(args) / FOLDER,
        args.snapshot,
        ask=not args.no_ask,
        parallel=settings.parallel,
        report=line,
    )
    line.close()
    if args.json:
        print_json(found.facts())
        return 0
    print(
        f"snapshot {found.snapshot} is intact: {found.files} files, {format_bytes(found.bytes)},"
        f" {found.models} models, {found.runs} runs, {found.keys} keys; took {format_seconds(found.seconds)}"
    )
    if found.model is not None:
        print(f"{found.model} answered: {found.answer!r}")
    elif not args.no_ask:
        print("it has no model to query")
    return 0


def run_prune(args: argparse.Namespace) -> int:
    settings, line = settings_of(args), ProgressLine(quiet=args.json)
    gone = prune(repository_of(args, settings), _keep(args, settings), line, dry_run=args.dry_run)
    line.close()
    if args.json:
        print_json(gone.facts())
        return 0
    verb = "would be deleted" if args.dry_run else "deleted"
    size = format_bytes(gone.freed_bytes)
    print(f"{len(gone.forgotten)} snapshots {verb}, {len(gone.kept)} kept; {size} freed")
    if gone.waits:
        print("another process is using the backup; unused chunks are kept until the next prune")
    return 0


def run_schedule(args: argparse.Namespace) -> int:
    if args.times is not None and args.times < 1:
        raise AskedWrongly(f"--times {args.times}: must be at least 1")
    settings, line = settings_of(args), ProgressLine(quiet=args.json)
    repository_of(args, settings, create=True)  # report wrong options now, not in an hour
    schedule = BackupSchedule(
        home_of(args),
        lambda: repository_of(args, settings, create=True),
        settings.every,
        _keep(args, settings),
        options_of(args, settings),
        line,
        line.say,
    )
    with _alone(args):
        while args.times is None or schedule.figures["made_total"] < args.times:
            wait_s = schedule.step(time.time())
            if args.times is None or schedule.figures["made_total"] < args.times:
                time.sleep(wait_s)
    line.close()
    if args.json:
        print_json(schedule.figures)
    return 0


def _verb(verbs: Any, name: str, purpose: str, example: str, action: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=f"examples:\n  windlass {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_backup(parser)
    parser.set_defaults(run=action)
    return parser


def _add_keep(parser: argparse.ArgumentParser) -> None:
    for name, field in Keep.model_fields.items():
        about = f"snapshots to keep: {field.description} (default: {field.default})"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=about)


def _keep(args: argparse.Namespace, settings: Backup) -> Keep:
    given = {name: getattr(args, name) for name in Keep.model_fields if getattr(args, name) is not None}
    return parse(Keep, {**settings.keep.model_dump(), **given}, "options")


def _alone(args: argparse.Namespace) -> Any:
    home = home_of(args)
    return locked(home / FOLDER / ".lock", f"the backup of {home}")


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
