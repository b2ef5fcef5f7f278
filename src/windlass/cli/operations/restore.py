"""`windlass restore`: restore a home directory from a backup."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.backup.restore import Restored, restore
from windlass.cli.home import home_of
from windlass.cli.operations.backup_argument import (
    add_backup,
    add_databases,
    add_parallel,
    databases_of,
    repository_of,
    settings_of,
)
from windlass.cli.terminal import print_json
from windlass.runs.progress_line import ProgressLine
from windlass.spec.units import format_bytes, format_seconds

EPILOG = """\
The home must be empty or not exist. Every byte is verified, and the home appears atomically; an interrupted
restore continues with the same command. Paths in runs are rewritten if the home is a different one.

examples:
  windlass restore s3://bucket/home                        to the home: .windlass here, or $WINDLASS_HOME
  windlass restore /mnt/disk/home --to /srv/windlass --key-file key
  windlass restore s3://bucket/home --snapshot 20261117T09
  windlass restore s3://bucket/home --state postgresql://windlass@db.local/service
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_backup(parser)
    parser.add_argument("--to", metavar="HOME", type=Path, help="the home to create (default: --home)")
    parser.add_argument(
        "--snapshot", metavar="ID", help="snapshot id or a prefix of it (default: the newest)"
    )
    add_databases(parser, "empty database for the service's records that were on a server (default: a file)")
    add_parallel(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings, line = settings_of(args), ProgressLine(quiet=args.json)
    home = args.to.expanduser().absolute() if args.to is not None else home_of(args)
    back = restore(
        repository_of(args, settings),
        home,
        args.snapshot,
        databases=databases_of(args, args.state),
        parallel=settings.parallel,
        report=line,
    )
    line.close()
    print_json(back.facts()) if args.json else _print_restored(back)
    return 0


def _print_restored(back: Restored) -> None:
    snapshot, lost = back.snapshot, back.lost
    print(
        f"restored {back.home}: {len(snapshot.files)} files, {format_bytes(snapshot.bytes)},"
        f" in {format_seconds(back.seconds)}"
    )
    print(f"from snapshot {snapshot.id}, {format_seconds(lost.age_s)} old")
    if lost.known_s > 0:
        print(f"lost: writes of the {format_seconds(lost.known_s)} after it, as far as known")
    else:
        print("lost: no known writes after it")
    if lost.bound_s is not None:
        every = format_seconds(lost.bound_s)
        print(f"snapshots were scheduled every {every}: at most that much is lost")
    for need in back.needs:
        print(f"to do: {need}")
