"""What verbs that take a job file have in common: reading it, changing it, planning it."""

from __future__ import annotations

import argparse

from windlass.spec.job import Job
from windlass.spec.read import read_job


def add_job(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Ask for a job file; `default` says what happens without one, where it may be left out."""
    if default is None:
        parser.add_argument("job", metavar="JOB.toml", help="the job file")
    else:
        parser.add_argument("job", metavar="JOB.toml", nargs="?", help=f"the job file (default: {default})")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        help="change a setting for this run, e.g. --set train.steps=100 (may be repeated)",
    )


def job_of(args: argparse.Namespace) -> Job:
    return read_job(args.job, args.overrides)
