"""`windlass jobs submit`: `windlass train` in the background, independent of this terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.home import home_of
from windlass.cli.job_argument import job_of
from windlass.cli.terminal import print_json
from windlass.cli.training import train
from windlass.cli.training.jobs_control import NEEDED, add_control, queue_of, submit_job
from windlass.cli.training.workers import check_served, clustered, elastic_job, laid_out, nodes_of
from windlass.runs.detached import OUTPUT, start_detached
from windlass.runs.progress_line import ProgressLine
from windlass.runs.training import open_run, resumable
from windlass.spec.errors import AskedWrongly
from windlass.spec.job import Job

EPILOG = """\
Takes the options of `windlass train`. Builds the corpus and plans the run before it returns.

examples:
  windlass jobs submit job.toml
  windlass jobs submit job.toml --workers 2 --set train.steps=1000
  windlass jobs submit job.toml --elastic --workers 4 --spares 1
  windlass jobs submit job.toml --control http://10.0.0.1:8100 --priority 5    to the queue of a cluster
"""
OURS = ("run", "verb", "what", "job", "home", "overrides", "json", "resume", "control", "priority")
HERE_ALONE = ("resume", "elastic", "spares", "rendezvous", "node_rank", "detach", "restarts")
"""Options of `windlass train` that a control plane does not accept."""


def add_submit(parser: argparse.ArgumentParser) -> None:
    train.configure(parser)
    add_control(parser, tenant=False)
    parser.add_argument("--priority", type=int, metavar="N", help="higher runs first (with --control)")
    parser.epilog = EPILOG
    parser.set_defaults(run=run_submit)


def run_submit(args: argparse.Namespace) -> int:
    queue = queue_of(args)
    if queue is not None:
        return submit_job(queue, args, _queued_job(args))
    if args.priority is not None:
        raise AskedWrongly("--priority needs --control", hint=NEEDED)
    if clustered(job_of(args), args).cluster.backend is not None:
        raise AskedWrongly(
            "`jobs submit` cannot start a run with --backend", hint="windlass train JOB --detach"
        )
    nodes, line = nodes_of(args), ProgressLine(quiet=args.json)
    if nodes.count > 1:
        raise AskedWrongly(
            "only runs on one machine can be submitted", hint="run `windlass train` on each machine instead"
        )
    home = home_of(args)
    folder = open_run(_job(args, home), home, line, resume=args.resume)
    line.close()
    pid = start_detached(folder, [args.job, "--resume", "--home", str(home), *options_of(args)])
    if args.json:
        print_json({"run": folder.name, "path": str(folder.path), "pid": pid})
    else:
        print(f"{folder.name}")
        line.say(f"it trains in the background; follow it: windlass jobs logs {folder.name} --follow")
        line.say(f"what it prints is in {folder.path / OUTPUT}")
    return 0


def _job(args: argparse.Namespace, home: Path) -> Job:
    """Return the job as `windlass train` with these options would run it."""
    job = job_of(args)
    if job.sync.policy == "server":
        check_served(args, job)
    if not args.elastic:
        return laid_out(job, args.layout, args.workers, 1)
    earlier = resumable(job, home) if args.resume else None
    return elastic_job(job, args, earlier.load().job.layout if earlier is not None else None)


def _queued_job(args: argparse.Namespace) -> Job:
    """Return the job as it is sent to a control plane."""
    given = [key for key in HERE_ALONE if getattr(args, key)]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise AskedWrongly(f"{option} cannot be used with --control: the control plane decides it")
    return laid_out(clustered(job_of(args), args), args.layout, args.workers, args.nodes)


def options_of(args: argparse.Namespace) -> list[str]:
    """Return the given options of `windlass train`, to repeat them."""
    given = [part for override in args.overrides for part in ("--set", override)]
    for key, value in vars(args).items():
        if key not in OURS:
            given += _option(key, value)
    return given


def _option(key: str, value: Any) -> list[str]:
    name = "--" + key.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    values = value if isinstance(value, list) else [value]
    return [f"{name}={each}" for each in values]
