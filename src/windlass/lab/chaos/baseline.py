"""Baseline throughput without faults."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from windlass.lab.chaos.environment import ChaosEnvironment, ChaosTrial
from windlass.lab.chaos.experiment import LOOK_EVERY_S
from windlass.lab.chaos.measure import MeasuredCapacity, num_workers, positions, span
from windlass.lab.chaos.schedule import KINDS
from windlass.lab.chaos.watch import JournalWatch
from windlass.runs.elastic_run import write_workers_request
from windlass.runs.training import RunFolder, plan_job
from windlass.spec.errors import ProcessFailed
from windlass.spec.job import Job
from windlass.spec.protocol.progress import Report as Progressing
from windlass.spec.read import parse
from windlass.spec.run import JOURNAL

WARM_S, MEASURE_S = 2.0, 8.0
"""Seconds with each number of workers: skipped, then measured."""
PATIENCE_S = 180.0
"""Seconds without a step after which a run counts as dead: far more than any recovery may take."""
ENDLESS_STEPS = 10**6
SUFFIX = "-chaos"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ChaosRequest:
    """The job, and which faults to inject how often."""

    job: Job
    workers: int = 4
    spares: int = 0
    seconds: float = 600.0
    every_s: float = 20.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    reference: RunFolder | None = None
    """A finished run without faults; without one, it is made."""


def baseline_rates(
    env: ChaosEnvironment, ask: ChaosRequest, progress: Progressing, tell: Tell
) -> MeasuredCapacity:
    """Return samples per second without faults, by number of workers; the run is deleted.

    One run is scaled down and then up again, so that other load on the machine affects all numbers alike.
    """
    down = list(range(ask.workers, 0, -1))
    found: dict[int, list[float]] = {workers: [] for workers in down}
    with env.start_trial(trial_job(ask, ENDLESS_STEPS), progress, ask.workers) as trial:
        watch = JournalWatch(trial.run.path / JOURNAL)
        for workers in (*down, *reversed(down)):
            write_workers_request(trial.run.path, workers, "windlass chaos")
            there = workers + ask.spares
            await_seen(trial, watch, lambda n=there: num_workers(watch.seen) == n)  # type: ignore[misc]
            found[workers].append(_baseline_rate(trial, watch))
        delayed = _delayed_rate(env, trial, watch)
    shutil.rmtree(trial.run.path)
    rates = {workers: sum(both) / len(both) for workers, both in found.items()}
    tell("baseline: " + ", ".join(f"{n} workers {rate:.1f} samples/s" for n, rate in rates.items()))
    return MeasuredCapacity(rates, 1.0 if delayed is None else min(1.0, delayed / rates[ask.workers]))


def _delayed_rate(env: ChaosEnvironment, trial: ChaosTrial, watch: JournalWatch) -> float | None:
    """Return the speed of all workers while the network of one is slow; None if it cannot be slowed."""
    network = env.network
    if network is None or not network.delay:
        return None
    network.slow_down(0)
    try:
        return _baseline_rate(trial, watch)
    finally:
        network.speed_up(0)


def baseline_run(
    env: ChaosEnvironment, ask: ChaosRequest, capacity: MeasuredCapacity, progress: Progressing, tell: Tell
) -> tuple[RunFolder, MeasuredCapacity]:
    """Train without faults, about as long as the experiment. Return the run, and the capacity scaled to it.

    A whole run, with its evaluations and checkpoints, measures the workers' speed better than short trials.
    """
    batch = plan_job(trial_job(ask, ENDLESS_STEPS), env.home, progress).batch_sequences
    steps = max(1, math.ceil(capacity.rates[ask.workers] * ask.seconds / batch))
    tell(f"baseline run: {steps} steps")
    with env.start_trial(trial_job(ask, steps), progress, ask.workers) as trial:
        watch = JournalWatch(trial.run.path / JOURNAL)
        await_seen(trial, watch, lambda: num_workers(watch.seen) > 0)
        begun_s = time.monotonic()
        failure = to_the_end(trial, watch)
    if failure is not None:
        raise ProcessFailed(f"the baseline run {trial.run.name} failed", hint=failure)
    rate = _rate(watch, begun_s, math.inf)
    tell(f"baseline run {trial.run.name}: {rate:.1f} samples/s")
    return trial.run, capacity.scaled(rate / capacity.rates[ask.workers])


def trial_job(ask: ChaosRequest, steps: int) -> Job:
    """Return the job with these steps, a layout for all workers, and the name JOB-chaos."""
    job = ask.job
    body = job.model_dump()
    body["name"] = f"{job.name.removesuffix(SUFFIX)[: 63 - len(SUFFIX)]}{SUFFIX}"
    body["train"] |= {"steps": steps, "tokens": None, "time": None}
    body["elastic"] |= {"spares": ask.spares}
    if job.layout.world == 1:
        body["layout"] |= {"dp": ask.workers}
    return parse(Job, body, job.name)


def await_seen(trial: ChaosTrial, watch: JournalWatch, seen: Callable[[], bool]) -> None:
    """Wait until a condition on the journal of a running trial holds."""
    until = time.monotonic() + PATIENCE_S
    while not seen():
        if not trial.lives():
            raise ProcessFailed(f"run {trial.run.name} ended early", hint=trial.failure())
        if time.monotonic() > until:
            raise ProcessFailed(f"run {trial.run.name} made no progress within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
        watch.poll(time.monotonic())


def _baseline_rate(trial: ChaosTrial, watch: JournalWatch) -> float:
    begun_s = time.monotonic() + WARM_S
    await_seen(trial, watch, lambda: time.monotonic() > begun_s + MEASURE_S)
    return _rate(watch, begun_s, begun_s + MEASURE_S)


def to_the_end(trial: ChaosTrial, watch: JournalWatch) -> str | None:
    """Watch a run until it ends. Return why it failed, or None."""
    last_step_s = time.monotonic()
    while trial.lives():
        now_s = time.monotonic()
        if any(one.event in ("ledger", "settled") for one in watch.poll(now_s)):
            last_step_s = now_s
        if now_s > last_step_s + PATIENCE_S:
            return f"no step within {PATIENCE_S:.0f} s"
        time.sleep(LOOK_EVERY_S)
    trial.wait()
    watch.poll(time.monotonic())
    failure = trial.failure()
    if failure is None and not trial.run.finished:
        failure = "it ended before its last step"
    return failure


def _rate(watch: JournalWatch, from_s: float, until_s: float) -> float:
    """Return samples per second between two times, by the nearest records."""
    first, last = span(positions(watch.seen), from_s, until_s)
    return (last.samples - first.samples) / max(last.at_s - first.at_s, 1e-9)
