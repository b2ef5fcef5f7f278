"""How fast a run is that nobody disturbs: the measure for one that somebody does."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from windlass.lab.chaos.environment import ChaosEnvironment, ChaosTrial
from windlass.lab.chaos.experiment import LOOK_EVERY_S
from windlass.lab.chaos.measure import MeasuredCapacity, company, positions, span
from windlass.lab.chaos.schedule import KINDS
from windlass.lab.chaos.watch import JournalWatch
from windlass.runs.elastic_run import want
from windlass.runs.training import RunFolder, plan_job
from windlass.spec.errors import ProcessFailed
from windlass.spec.job import Job
from windlass.spec.protocol.progress import Report as Progressing
from windlass.spec.read import parse
from windlass.spec.run import JOURNAL

WARM_S, CALM_S = 2.0, 8.0
"""With each number of workers: left out, and measured."""
PATIENCE_S = 180.0
"""Without any step of a run after which it counts as dead: far more than any recovery may take."""
ENDLESS_STEPS = 10**6
SUFFIX = "-chaos"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ChaosRequest:
    """How hard to hit what."""

    job: Job
    workers: int = 4
    spares: int = 0
    seconds: float = 600.0
    every_s: float = 20.0
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    reference: RunFolder | None = None
    """An undisturbed run that is finished; else one is made."""


def calm_rates(
    stage: ChaosEnvironment, ask: ChaosRequest, progress: Progressing, tell: Tell
) -> MeasuredCapacity:
    """Return the samples a second of every number of workers that nobody disturbs; the run is not kept.

    One run is asked for fewer and fewer workers and then for more and more, so that what else goes on on the
    machine for a while weighs on all alike.
    """
    down = list(range(ask.workers, 0, -1))
    found: dict[int, list[float]] = {workers: [] for workers in down}
    with stage.playing(played(ask, ENDLESS_STEPS), progress, ask.workers) as play:
        watch = JournalWatch(play.run.path / JOURNAL)
        for workers in (*down, *reversed(down)):
            want(play.run.path, workers, "windlass chaos")
            there = workers + ask.spares
            await_seen(play, watch, lambda n=there: company(watch.seen) == n)  # type: ignore[misc]
            found[workers].append(_calm_rate(play, watch))
        delayed = _delayed_rate(stage, play, watch)
    shutil.rmtree(play.run.path)
    rates = {workers: sum(both) / len(both) for workers, both in found.items()}
    tell("calm: " + ", ".join(f"{n} workers {rate:.1f} samples/s" for n, rate in rates.items()))
    return MeasuredCapacity(rates, 1.0 if delayed is None else min(1.0, delayed / rates[ask.workers]))


def _delayed_rate(stage: ChaosEnvironment, play: ChaosTrial, watch: JournalWatch) -> float | None:
    """Return the speed of all workers while the network of one is slow; None where it cannot be slowed."""
    network = stage.network
    if network is None or not network.delay:
        return None
    network.slow_down(0)
    try:
        return _calm_rate(play, watch)
    finally:
        network.speed_up(0)


def undisturbed(
    stage: ChaosEnvironment, ask: ChaosRequest, capacity: MeasuredCapacity, progress: Progressing, tell: Tell
) -> tuple[RunFolder, MeasuredCapacity]:
    """Train as long as the storm will last at full strength. Return the run, and the capacity by it.

    The whole of it says better than a short trial what all workers can do, evaluations and checkpoints
    included, so the trials are scaled to it.
    """
    batch = plan_job(played(ask, ENDLESS_STEPS), stage.home, progress).batch_sequences
    steps = max(1, math.ceil(capacity.rates[ask.workers] * ask.seconds / batch))
    tell(f"the undisturbed run: {steps} steps")
    with stage.playing(played(ask, steps), progress, ask.workers) as play:
        watch = JournalWatch(play.run.path / JOURNAL)
        await_seen(play, watch, lambda: company(watch.seen) > 0)
        begun_s = time.monotonic()
        failure = to_the_end(play, watch)
    if failure is not None:
        raise ProcessFailed(f"the undisturbed run {play.run.name} failed", hint=failure)
    rate = _rate(watch, begun_s, math.inf)
    tell(f"the undisturbed run {play.run.name}: {rate:.1f} samples/s")
    return play.run, capacity.scaled(rate / capacity.rates[ask.workers])


def played(ask: ChaosRequest, steps: int) -> Job:
    """Return the job with another length, laid out for all workers, and with a name of its own."""
    job = ask.job
    body = job.model_dump()
    body["name"] = f"{job.name.removesuffix(SUFFIX)[: 63 - len(SUFFIX)]}{SUFFIX}"
    body["train"] |= {"steps": steps, "tokens": None, "time": None}
    body["elastic"] |= {"spares": ask.spares}
    if job.layout.world == 1:
        body["layout"] |= {"dp": ask.workers}
    return parse(Job, body, job.name)


def await_seen(play: ChaosTrial, watch: JournalWatch, seen: Callable[[], bool]) -> None:
    """Wait until the journal of a run that goes on tells what is waited for."""
    until = time.monotonic() + PATIENCE_S
    while not seen():
        if not play.lives():
            raise ProcessFailed(f"run {play.run.name} ended early", hint=play.failure())
        if time.monotonic() > until:
            raise ProcessFailed(f"run {play.run.name} did not get on within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
        watch.poll(time.monotonic())


def _calm_rate(play: ChaosTrial, watch: JournalWatch) -> float:
    begun_s = time.monotonic() + WARM_S
    await_seen(play, watch, lambda: time.monotonic() > begun_s + CALM_S)
    return _rate(watch, begun_s, begun_s + CALM_S)


def to_the_end(play: ChaosTrial, watch: JournalWatch) -> str | None:
    """Watch a run until it is over. Return why it failed, or None."""
    heard_s = time.monotonic()
    while play.lives():
        now_s = time.monotonic()
        if any(one.event in ("ledger", "settled") for one in watch.poll(now_s)):
            heard_s = now_s
        if now_s > heard_s + PATIENCE_S:
            return f"no step within {PATIENCE_S:.0f} s"
        time.sleep(LOOK_EVERY_S)
    play.wait()
    watch.poll(time.monotonic())
    failure = play.failure()
    if failure is None and not play.run.finished:
        failure = "it ended before its last step"
    return failure


def _rate(watch: JournalWatch, from_s: float, until_s: float) -> float:
    """Return samples a second between two moments, by the records nearest to them."""
    first, last = span(positions(watch.seen), from_s, until_s)
    return (last.samples - first.samples) / max(last.at_s - first.at_s, 1e-9)
