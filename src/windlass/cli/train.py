"""`windlass train`: train a job and register the result."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.follow import Follower
from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import ProgressLine, print_json
from windlass.operate.registry import Registry, Version
from windlass.operate.runs import RunFolder, find_resumable, prepare, resumable, train
from windlass.spec.door import INTERRUPTED
from windlass.spec.job import Job

EPILOG = """\
Ctrl-C stops after the current step and saves a checkpoint; --resume goes on from it, bit for bit.

examples:
  windlass train job.toml
  windlass train job.toml --set train.steps=100
  windlass train job.toml --resume
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    add_home(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the newest unfinished run of this job"
    )
    parser.add_argument("--no-register", action="store_true", help="leave the result in the run's directory")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    job, home = job_of(args), home_of(args)
    line = ProgressLine(quiet=args.json)
    folder = open_run(job, home, line, resume=args.resume)
    follower = Follower(line)
    finished = train(folder, follower)
    line.close()
    if not finished:
        line.say(f"stopped at step {follower.stopped_at}; go on with: windlass train {args.job} --resume")
        return INTERRUPTED
    version = None if args.no_register else Registry(home).register(job.name, folder.result)
    if args.json:
        print_json(summary(folder, follower, version))
        return 0
    print(f"run {folder.name} is done: validation loss {follower.evaluation['loss']:.4f}")
    if version is None:
        print(f"model: {folder.result}")
    else:
        print(f"registered as {version}; try: windlass serve {version}")
    return 0


def open_run(job: Job, home: Path, line: ProgressLine, *, resume: bool) -> RunFolder:
    """Find the run to go on with, or make a new one."""
    if resume:
        return find_resumable(job, home)
    earlier = resumable(job, home)
    if earlier is not None:
        line.say(
            f"note: run {earlier.name} of this job stands at step {earlier.step}; --resume goes on with it"
        )
    folder = prepare(job, home, line)
    line.close()
    return folder


def summary(folder: RunFolder, follower: Follower, version: Version | None) -> dict[str, Any]:
    """What a script wants to know about a finished run."""
    kept = ("loss", "perplexity", "bits_per_byte", "tokens")
    return {
        "run": str(folder.path),
        "model": str(version) if version else None,
        "path": str(version.path if version else folder.result),
        "step": follower.finished.get("step"),
        "train_s": follower.finished.get("train_s"),
        **{key: follower.evaluation.get(key) for key in kept},
        "sample": follower.sample,
    }
