"""`windlass train`: train a job and register the model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import print_json
from windlass.cli.training.train_on_kubernetes import train_on_kubernetes
from windlass.cli.training.workers import (
    add_cluster,
    add_workers,
    check_served,
    clustered,
    elastic_job,
    laid_out,
    nodes_of,
    repeated,
)
from windlass.cluster.backends import backend_of
from windlass.cluster.launch.rendezvous import Nodes, host_rendezvous
from windlass.registry.versions import Registry, Version
from windlass.runs.cluster_run import train_on
from windlass.runs.elastic_run import address_towards_leader, join_elastic, train_elastic
from windlass.runs.follower import Follower
from windlass.runs.progress_line import ProgressLine
from windlass.runs.server_run import train_served
from windlass.runs.training import RunFolder, attend, open_run, resumable, train
from windlass.spec.job import Job
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

EPILOG = """\
Ctrl-C stops after the current step and saves a checkpoint; --resume continues from it, bit for bit.

examples:
  windlass train job.toml
  windlass train job.toml --set train.steps=100
  windlass train job.toml --resume
  windlass train job.toml --workers 2                  two processes on this machine
  windlass train job.toml --layout pp=2,tp=2           four, with pipeline and tensor parallelism
  windlass train job.toml --workers 2 --nodes 2 --node-rank 0 --rendezvous 10.0.0.1:29400
  windlass train job.toml --elastic --workers 4 --spares 1     failed workers are replaced
  windlass train job.toml --backend ray --nodes 3      on three machines of the cluster in [cluster] address
  windlass train job.toml --backend kubernetes         in the cluster of your kubeconfig; Ctrl-C stops it
  windlass train job.toml --set sync.policy=server --workers 3     on parameter servers (docs/sync.md)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    add_home(parser)
    parser.add_argument("--resume", action="store_true", help="resume the newest unfinished run of this job")
    parser.add_argument("--no-register", action="store_true", help="leave the result in the run's directory")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_workers(parser)
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    served = job_of(args).sync.policy == "server"
    if served:
        check_served(args, job_of(args))
    if args.node_rank == 0 and clustered(job_of(args), args).cluster.backend is not None:
        return run_on_cluster(args)
    nodes, line = nodes_of(args), ProgressLine(quiet=args.json)
    if nodes.rank > 0:
        return 0 if take_part(args, nodes, line) else INTERRUPTED
    job, home = job_of(args), home_of(args)
    earlier = resumable(job, home) if args.elastic and args.resume else None
    if args.elastic:
        job = elastic_job(job, args, earlier.load().job.layout if earlier is not None else None)
    else:
        job = laid_out(job, args.layout, args.workers, nodes.count)
    if earlier is not None and address_towards_leader(earlier) is not None:
        nodes = Nodes()  # the other nodes are already training
    if nodes.count > 1:
        line.say(f"node 0: waiting for {nodes.count - 1} more at {nodes.rendezvous}")
    follower = Follower(line)
    with host_rendezvous(nodes) as node_group:
        folder = open_run(job, home, line, resume=args.resume)
        if args.elastic:
            workers = args.workers * args.nodes if args.workers is not None else None
            finished = train_elastic(folder, follower, workers=workers, node_group=node_group)
            catch_up(folder, follower)
        elif served:
            finished = train_served(folder, follower)
        else:
            finished = train(folder, follower, node_group=node_group, restarts=args.restarts)
    line.close()
    return ended(args, job, home, folder, follower, finished, line)


def ended(
    args: argparse.Namespace,
    job: Job,
    home: Path,
    folder: RunFolder,
    follower: Follower,
    finished: bool | None,
    line: ProgressLine,
) -> int:
    """Register the model of a finished run, or print how to resume it."""
    if finished is None:
        follow = f"windlass train {args.job} --resume{repeated(args)}"
        tell = {"run": folder.name, "path": str(folder.path)}
        print_json(tell) if args.json else print(f"{folder.name} is running; follow it with: {follow}")
        return 0
    if not finished:
        step = follower.stopped_at if follower.stopped_at is not None else folder.step
        line.say(f"stopped at step {step}; resume with: windlass train {args.job} --resume{repeated(args)}")
        return INTERRUPTED
    version = None if args.no_register else Registry(home).register(job.name, folder.result)
    print_result(folder, follower, version, as_json=args.json)
    return 0


def run_on_cluster(args: argparse.Namespace) -> int:
    """Train on the cluster of the job; workers may come and go, as in any elastic run."""
    line, home = ProgressLine(quiet=args.json), home_of(args)
    job = clustered(job_of(args), args)
    args.nodes, args.elastic = job.cluster.nodes, True
    if job.cluster.backend == "kubernetes":
        return train_on_kubernetes(args, elastic_job(job, args, None))
    earlier = resumable(job, home) if args.resume else None
    job = elastic_job(job, args, earlier.load().job.layout if earlier is not None else None)
    backend = backend_of(job.cluster, home)
    follower = Follower(line)
    folder = open_run(job, home, line, resume=args.resume)
    workers = args.workers * args.nodes if args.workers is not None else None
    finished = train_on(backend, folder, follower, line.say, workers=workers, detach=args.detach)
    catch_up(folder, follower)
    line.close()
    return ended(args, job, home, folder, follower, finished, line)


def take_part(args: argparse.Namespace, nodes: Nodes, line: ProgressLine) -> bool:
    """Run the workers of a node other than node 0."""
    line.say(f"node {nodes.rank}: looking for node 0 at {nodes.rendezvous}")
    if not args.elastic:
        return attend(nodes, line.say)
    going = resumable(job_of(args), home_of(args)) if args.resume else None
    return join_elastic(nodes, Follower(line), going)


def catch_up(folder: RunFolder, follower: Follower) -> None:
    """Replay from the journal the events that the follower missed while there was no leader."""
    for record in Journal(StoreDir(folder.path), JOURNAL).read():
        if record.get("event") in ("evaluation", "finished"):
            setattr(follower, str(record["event"]), record)


def print_result(folder: RunFolder, follower: Follower, version: Version | None, *, as_json: bool) -> None:
    if as_json:
        print_json(summary(folder, follower, version))
        return
    print(f"run {folder.name} is done: validation loss {follower.evaluation['loss']:.4f}")
    if version is None:
        print(f"model: {folder.result}")
    else:
        print(f"registered as {version}; try: windlass serve {version}")


def summary(folder: RunFolder, follower: Follower, version: Version | None) -> dict[str, Any]:
    """The JSON summary of a finished run."""
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
