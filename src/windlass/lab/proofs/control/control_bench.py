"""Measures a control plane: a thousand jobs, from submit to done.

    submit over HTTP, to a real control process          -> latency
    reconcile on an in-memory cluster (memory_cluster.py)         -> decision and step time, jobs per second

The second half runs the loop of reconcile.py on its own database, with a clock moved by the benchmark: it
measures the control plane, not the jobs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.backend import Group, Resources
from windlass.control.api.control_keys import ControlKeys
from windlass.control.plane.job_store import JobStore, Submission, open_plane, plane_url
from windlass.control.plane.leader_lease import DatabaseLease
from windlass.control.plane.leader_store import FencedLeaderStore
from windlass.control.plane.queued_job import JobEntry, ResourceNeeds
from windlass.control.plane.reconcile import Reconciler
from windlass.control.scheduler.decide import decide
from windlass.control.scheduler.snapshot import JobDecision, Snapshot
from windlass.lab.proofs.control.control_client import ControlClient
from windlass.lab.proofs.control.memory_cluster import TableBackend
from windlass.lab.proofs.control.pair import ControllerProcess
from windlass.spec.protocol.progress import Progress, Report

CORES = 8.0
TICK_S = 1.0
"""Simulated seconds between two steps."""
TENANTS = ("ada", "bob", "cleo", "dan")
TEXT = 'name = "{name}"\n[cluster]\ncores = 1000\n'
"""A job that waits forever: no node is this large."""


def bench_control(
    report: Report, *, jobs: int = 1000, nodes: int = 100, submits: int = 200
) -> dict[str, Any]:
    """Return the figures of both halves."""
    with tempfile.TemporaryDirectory(prefix="windlass-control-") as scratch:
        reconciled = reconcile_jobs(Path(scratch), jobs, nodes, report)
        submitted = submit_jobs(Path(scratch) / "home", submits, report)
    return {"figures": {"jobs": jobs, "nodes": nodes, **reconciled, **submitted}}


def reconcile_jobs(folder: Path, jobs: int, nodes: int, report: Report) -> dict[str, float]:
    """Put jobs of four tenants into the queue, and step until all are done."""
    now_s = [1_000_000.0]
    clock = lambda: now_s[0]  # noqa: E731
    database = open_plane(plane_url(folder))
    try:
        records = JobStore(database, clock=clock)
        began = time.perf_counter()
        for submission in _submissions(jobs):
            records.submit(submission)
        written_s = time.perf_counter() - began
        lease = DatabaseLease(database, "bench")
        lease.step(0.0)
        backend = TableBackend(nodes, CORES, clock)
        ledger = FencedLeaderStore(records, lambda: lease.epoch)
        decisions, busy, steps = list[float](), list[float](), list[float]()

        def timed(view: Snapshot) -> list[JobDecision]:
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            decided = decide(view)
            decisions.append(time.perf_counter() - began_s)
            busy.append(time.thread_time() - cpu_s)
            return decided

        reconciler = Reconciler(ledger, backend, _group, timed, clock=clock)
        began = time.perf_counter()
        while records.counts().get("done", 0) < jobs:
            step_began = time.perf_counter()
            reconciler.step()
            steps.append(time.perf_counter() - step_began)
            now_s[0] += TICK_S
            report(Progress("reconcile", records.counts().get("done", 0), jobs, "jobs"))
        passed_s = time.perf_counter() - began
        twice = sum(count > 1 for count in backend.ended.values())
    finally:
        database.close()
    return {
        "decision_p50_ms": 1000 * quantile(decisions, 0.5),
        "decision_p99_ms": 1000 * quantile(decisions, 0.99),
        "decision_worst_ms": 1000 * max(decisions),
        "decision_p50_cpu_ms": 1000 * quantile(busy, 0.5),
        "decision_p99_cpu_ms": 1000 * quantile(busy, 0.99),
        "decision_worst_cpu_ms": 1000 * max(busy),
        "step_p50_ms": 1000 * quantile(steps, 0.5),
        "step_p99_ms": 1000 * quantile(steps, 0.99),
        "steps": len(steps),
        "jobs_per_s": jobs / passed_s,
        "written_jobs_per_s": jobs / written_s,
        "run_twice": twice,
    }


def submit_jobs(home: Path, submits: int, report: Report) -> dict[str, float]:
    """Submit to a real control process, one after the other."""
    home.mkdir()
    key = ControlKeys(home).make("bench")
    control = ControllerProcess(home, plane_url(home), 1)
    try:
        waits = list[float]()
        asking = ControlClient([control.listen()], key)
        for number in range(submits):
            began = time.perf_counter()
            asking.submit(TEXT.format(name=f"j{number}"))
            waits.append(time.perf_counter() - began)
            report(Progress("submit", number + 1, submits, "jobs"))
        asking.close()
    finally:
        control.kill()
    return {
        "submit_p50_ms": 1000 * quantile(waits, 0.5),
        "submit_p99_ms": 1000 * quantile(waits, 0.99),
    }


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _submissions(jobs: int) -> list[Submission]:
    rng = random.Random(1)
    return [
        Submission(
            tenant=rng.choice(TENANTS),
            name=f"j{number}",
            kind="train",
            text=str(rng.choice((30, 60, 120))),
            need=ResourceNeeds(members=rng.choice((1, 1, 1, 2, 4)), cores=rng.choice((1.0, 2.0, 4.0))),
            by="bench",
            priority=rng.choice((0, 0, 0, 1)),
        )
        for number in range(jobs)
    ]


def _group(entry: JobEntry) -> Group:
    need = Resources(entry.need.cores)
    return Group(entry.group, "made.up", (entry.text,), entry.members, entry.tenant, resources=need)
