"""`windlass jobs ... --control URL`: the queue of a control plane in place of the runs of this machine."""

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
from windlass.spec.job_text import job_text

URL, KEY = "WINDLASS_CONTROL", "WINDLASS_CONTROL_KEY"
NEEDED = f"give --control URL, or set ${URL} and ${KEY}; `windlass control` starts one"
REASON_CHARS = 70


def add_control(parser: argparse.ArgumentParser, *, tenant: bool = True) -> None:
    """Options that say which control plane is meant."""
    group = parser.add_argument_group("a control plane")
    group.add_argument(
        "--control",
        metavar="URL",
        help=f"ask this control plane (several: URL,URL) with the key in ${KEY} (default: ${URL};"
        " without either, this machine)",
    )
    if tenant:
        group.add_argument("--tenant", metavar="T", help="whose job, with an administrator's key")


def queue_of(args: argparse.Namespace) -> Queue | None:
    """Return the queue that is meant; None when it is this machine."""
    given = os.environ.get(URL, "") if args.control is None else args.control
    urls = [url.strip() for url in given.split(",") if url.strip()]
    return Queue(urls, os.environ.get(KEY) or None) if urls else None


def needed_queue(args: argparse.Namespace) -> Queue:
    queue = queue_of(args)
    if queue is None:
        raise AskedWrongly("which control plane?", hint=NEEDED)
    return queue


def submit_job(queue: Queue, args: argparse.Namespace, job: Job) -> int:
    """Put a job into the queue. Its paths are sent as this machine sees them."""
    tenant = None if args.tenant in (None, "default") else args.tenant
    with queue:
        told = queue.submit(job_text(job, given=True), priority=args.priority or 0, tenant=tenant)
    return _tell_submitted(told, args)


def run_serve(args: argparse.Namespace) -> int:
    given = {"host": args.host, "port": args.port, "replicas": args.replicas}
    service: dict[str, Any] = {"model": args.model, **{k: v for k, v in given.items() if v is not None}}
    service["cluster"] = {
        key: value for key in ("cores", "memory", "gpus") if (value := getattr(args, key)) is not None
    }
    service["keys"] = not args.no_keys
    with needed_queue(args) as queue:
        told = queue.submit(service=service, name=args.name, priority=args.priority or 0, tenant=args.tenant)
    return _tell_submitted(told, args)


def list_jobs(queue: Queue, args: argparse.Namespace) -> int:
    with queue:
        jobs = queue.list(tenant=args.tenant)
    if args.json:
        print_json(jobs)
        return 0
    if not jobs:
        print("nothing was submitted yet; `windlass jobs submit JOB.toml` does it")
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
    times = ("asked_s", "since_s", "placed_s", "begun_s", "ended_s")
    rows = [(key, clock(value) if key in times else value) for key, value in _shown(job).items()]
    print_table(rows, ("what", "value"))
    print()
    print_table([(clock(e["at_s"]), e["by"], e["what"]) for e in events], ("time", "by", "what happened"))
    return 0


def explain_job(args: argparse.Namespace) -> int:
    with needed_queue(args) as queue:
        told = queue.explain(args.name, tenant=args.tenant)
    if args.json:
        print_json(told)
        return 0
    print(f"{told['job']['tenant']}/{told['job']['name']}: {told['text']}")
    if told["ahead"]:
        print(f"before it: {', '.join(told['ahead'])}")
    for tenant, count in sorted(told["running"].items()):
        print(f"room is held by {count} of {tenant}")
    return 0


def log_job(queue: Queue, args: argparse.Namespace) -> int:
    """Print what the run of a job told; with --follow, until the job is over."""
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
        told = queue.stop(args.name, tenant=args.tenant)
        if args.wait is not None:
            told = queue.wait(args.name, tenant=args.tenant, deadline=args.wait)
    if args.json:
        print_json(told)
    elif told["phase"] in OVER:
        print(f"job {told['tenant']}/{told['name']} is {told['phase']}")
    else:
        print(f"job {told['tenant']}/{told['name']} will save what it has and end")
    return 0


def set_priority(args: argparse.Namespace) -> int:
    with needed_queue(args) as queue:
        told = queue.set_priority(args.name, args.priority, tenant=args.tenant)
    print_json(told) if args.json else print(f"job {told['name']} has priority {told['priority']}")
    return 0


def _tell_submitted(told: dict[str, Any], args: argparse.Namespace) -> int:
    if args.json:
        print_json(told)
    else:
        print(f"{told['tenant']}/{told['name']}")
        print(f"it is {told['phase']}; look: windlass jobs show {told['name']}")
    return 0


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    hidden = ("need", "version", "wish")
    return {key: value for key, value in job.items() if value not in (None, "") and key not in hidden}


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS else reason[: REASON_CHARS - 3] + "..."
