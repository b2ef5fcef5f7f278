"""The arguments of verbs that take a job file: JOB.toml and --set."""

from __future__ import annotations

import argparse

from windlass.spec.job import Job
from windlass.spec.read import read_job


def add_job(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Add the job file argument; with `default` it is optional, and `default` says what is used instead."""
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
