"""`windlass jobs ... --control URL`: the queue of a control plane instead of the runs of this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from windlass.cli.terminal import print_json, print_table
from windlass.cli.training.jobs_logs import LOOK_EVERY_S, clock, line_of
from windlass.sdk.queue import OVER, Queue
from windlass.spec.errors import AskedWrongly
from windlass.spec.job import Job
from windlass.spec.read import job_text

URL, KEY = "WINDLASS_CONTROL", "WINDLASS_CONTROL_KEY"
NEEDED = f"give --control URL, or set ${URL} and ${KEY}; `windlass control` starts one"
REASON_CHARS = 70


def add_control(parser: argparse.ArgumentParser, *, tenant: bool = True) -> None:
    """Add the options that choose a control plane."""
    group = parser.add_argument_group("a control plane")
    group.add_argument(
        "--control",
        metavar="URL",
        help=f"use this control plane (several: URL,URL) with the key in ${KEY} (default: ${URL};"
        " without either, this machine)",
    )
    if tenant:
        group.add_argument("--tenant", metavar="T", help="tenant of the job, with an administrator's key")


def queue_of(args: argparse.Namespace) -> Queue | None:
    """Return the chosen queue; None for this machine."""
    given = os.environ.get(URL, "") if args.control is None else args.control
    urls = [url.strip() for url in given.split(",") if url.strip()]
    return Queue(urls, os.environ.get(KEY) or None) if urls else None


def needed_queue(args: argparse.Namespace) -> Queue:
    queue = queue_of(args)
    if queue is None:
        raise AskedWrongly("no control plane given", hint=NEEDED)
    return queue


def submit_job(queue: Queue, args: argparse.Namespace, job: Job) -> int:
    """Put a job into the queue. Its paths are sent as this machine sees them."""
    tenant = None if args.tenant in (None, "default") else args.tenant
    with queue:
        submitted = queue.submit(job_text(job, given=True), priority=args.priority or 0, tenant=tenant)
    return _print_submitted(submitted, args)


def run_serve(args: argparse.Namespace) -> int:
    given = {"host": args.host, "port": args.port, "replicas": args.replicas}
    service: dict[str, Any] = {"model": args.model, **{k: v for k, v in given.items() if v is not None}}
    service["cluster"] = {
        key: value for key in ("cores", "memory", "gpus") if (value := getattr(args, key)) is not None
    }
    service["keys"] = not args.no_keys
    with needed_queue(args) as queue:
        job = queue.submit(service=service, name=args.name, priority=args.priority or 0, tenant=args.tenant)
    return _print_submitted(job, args)


def list_jobs(queue: Queue, args: argparse.Namespace) -> int:
    with queue:
        jobs = queue.list(tenant=args.tenant)
    if args.json:
        print_json(jobs)
        return 0
    if not jobs:
        print("no jobs yet; `windlass jobs submit JOB.toml` submits one")
        return 0
    rows = [
        (
            f"{job['tenant']}/{job['name']}",
            job["phase"],
            job["place"] or "",
            job["priority"],
            clock(job["since_s"]),
            _short(job["reason"]),
        )
        for job in jobs
    ]
    print_table(rows, ("job", "phase", "place", "priority", "since", "why"))
    return 0


def show_job(queue: Queue, args: argparse.Namespace) -> int:
    with queue:
        job = queue.show(args.name, tenant=args.tenant)
        events = queue.events(args.name, tenant=args.tenant)
    if args.json:
        print_json({**job, "events": events})
        return 0
    times = ("submitted_s", "since_s", "placed_s", "begun_s", "ended_s")
    rows = [(key, clock(value) if key in times else value) for key, value in _shown(job).items()]
    print_table(rows, ("what", "value"))
    print()
    print_table([(clock(e["at_s"]), e["by"], e["what"]) for e in events], ("time", "by", "what happened"))
    return 0


def explain_job(args: argparse.Namespace) -> int:
    with needed_queue(args) as queue:
        reason = queue.explain(args.name, tenant=args.tenant)
    if args.json:
        print_json(reason)
        return 0
    print(f"{reason['job']['tenant']}/{reason['job']['name']}: {reason['text']}")
    if reason["ahead"]:
        print(f"before it: {', '.join(reason['ahead'])}")
    for tenant, count in sorted(reason["running"].items()):
        print(f"running: {count} jobs of {tenant}")
    return 0


def log_job(queue: Queue, args: argparse.Namespace) -> int:
    """Print the events of a job's run; with --follow, until the job ends."""
    seen = args.after
    with queue:
        while True:
            over = queue.show(args.name, tenant=args.tenant)["phase"] in OVER
            records = queue.journal(args.name, tenant=args.tenant, after=seen)
            seen += len(records)
            for record in records:
                print(json.dumps(record, ensure_ascii=False) if args.json else line_of(record), flush=True)
            if over or not args.follow:
                return 0
            time.sleep(5 * LOOK_EVERY_S)


def stop_job(queue: Queue, args: argparse.Namespace) -> int:
    with queue:
        job = queue.stop(args.name, tenant=args.tenant)
        if args.wait is not None:
            job = queue.wait(args.name, tenant=args.tenant, deadline=args.wait)
    if args.json:
        print_json(job)
    elif job["phase"] in OVER:
        print(f"job {job['tenant']}/{job['name']} is {job['phase']}")
    else:
        print(f"job {job['tenant']}/{job['name']} will save a checkpoint and stop")
    return 0


def set_priority(args: argparse.Namespace) -> int:
    with needed_queue(args) as queue:
        job = queue.set_priority(args.name, args.priority, tenant=args.tenant)
    print_json(job) if args.json else print(f"job {job['name']} has priority {job['priority']}")
    return 0


def _print_submitted(job: dict[str, Any], args: argparse.Namespace) -> int:
    if args.json:
        print_json(job)
    else:
        print(f"{job['tenant']}/{job['name']}")
        print(f"it is {job['phase']}; show it with: windlass jobs show {job['name']}")
    return 0


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    hidden = ("need", "version", "desired")
    return {key: value for key, value in job.items() if value not in (None, "") and key not in hidden}


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS else reason[: REASON_CHARS - 3] + "..."
