"""Runs a job undisturbed, then under fire, and says what became of it.

Input: a job and how hard to hit it.
Output: a Report, also as chaos.json and chaos.txt in the run's directory.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windlass.operate.audit import audit
from windlass.operate.chaos.likeness import likeness
from windlass.operate.chaos.measure import company, positions, span
from windlass.operate.chaos.report import Report, report_on
from windlass.operate.chaos.schedule import KINDS, draw
from windlass.operate.chaos.stage import Play, Stage, why_not
from windlass.operate.chaos.storm import LOOK_EVERY_S, Storm, pass_over
from windlass.operate.chaos.watch import Watch
from windlass.operate.elastic_run import want
from windlass.operate.runs import RunFolder, plan_job
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.job import Job
from windlass.spec.progress import Report as Progressing
from windlass.spec.read import parse
from windlass.spec.run import JOURNAL
from windlass.store.place import Place

WARM_S, CALM_S = 2.0, 8.0
"""With each number of workers: left out, and measured."""
PATIENCE_S = 180.0
"""Without any step of a run after which it counts as dead: far more than any recovery may take."""
ENDLESS_STEPS = 10**6
SUFFIX = "-chaos"
REPORT_FILE, TEXT_FILE = "chaos.json", "chaos.txt"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Ask:
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


def chaos(ask: Ask, home: Path, progress: Progressing, tell: Tell) -> Report:
    """Do all of it."""
    _check(ask)
    unable = why_not(ask.kinds)
    for kind, reason in unable.items():
        tell(f"no {kind} faults here: {reason}")
    with Stage(home, ask.workers, [kind for kind in ask.kinds if kind not in unable]) as stage:
        if stage.network is not None and not stage.network.delay and "delay" in ask.kinds:
            unable["delay"] = "this kernel has no queue that delays packets"
        kinds = [kind for kind in ask.kinds if kind not in unable]
        capacity = calm_rates(stage, ask, progress, tell)
        reference = ask.reference or undisturbed(stage, ask, capacity, progress, tell)
        job = played(ask, reference.load().steps)
        shots = draw(kinds, seconds=ask.seconds, every_s=ask.every_s, seed=ask.seed)
        with stage.playing(job, progress, ask.workers) as play:
            watch = Watch(play.run.path / JOURNAL)
            _await(play, watch, lambda: company(watch.seen) > 0)
            tell(f"run {play.run.name}: {len(shots)} faults to come in {ask.seconds:.0f} s")
            storm = pass_over(play.scene, watch, shots, seconds=ask.seconds, lives=play.lives, tell=tell)
            failure = _to_the_end(play, watch, tell)
    return _reported(ask, play.run, reference, storm, watch, capacity, unable, failure)


def calm_rates(stage: Stage, ask: Ask, progress: Progressing, tell: Tell) -> dict[int, float]:
    """Return the samples a second of every number of workers that nobody disturbs; the run is not kept.

    One run is asked for fewer and fewer workers and then for more and more, so that what else goes on on the
    machine for a while weighs on all alike.
    """
    down = list(range(ask.workers, 0, -1))
    found: dict[int, list[float]] = {workers: [] for workers in down}
    with stage.playing(played(ask, ENDLESS_STEPS), progress, ask.workers) as play:
        watch = Watch(play.run.path / JOURNAL)
        for workers in (*down, *reversed(down)):
            want(play.run.path, workers, "windlass chaos")
            _await(play, watch, lambda n=workers: company(watch.seen) == n)  # type: ignore[misc]
            found[workers].append(_calm_rate(play, watch))
    shutil.rmtree(play.run.path)
    rates = {workers: sum(both) / len(both) for workers, both in found.items()}
    tell("calm: " + ", ".join(f"{n} workers {rate:.1f} samples/s" for n, rate in rates.items()))
    return rates


def undisturbed(
    stage: Stage, ask: Ask, capacity: dict[int, float], progress: Progressing, tell: Tell
) -> RunFolder:
    """Train as long as the storm will last at full strength.

    The whole of it says better than a short trial what all workers can do, evaluations and checkpoints
    included, so the trials are scaled to it.
    """
    batch = plan_job(played(ask, ENDLESS_STEPS), stage.home, progress).batch_sequences
    steps = max(1, math.ceil(capacity[ask.workers] * ask.seconds / batch))
    tell(f"the undisturbed run: {steps} steps")
    with stage.playing(played(ask, steps), progress, ask.workers) as play:
        watch = Watch(play.run.path / JOURNAL)
        _await(play, watch, lambda: company(watch.seen) > 0)
        begun_s = time.monotonic()
        failure = _to_the_end(play, watch, tell)
    if failure is not None:
        raise ProcessFailed(f"the undisturbed run {play.run.name} failed", hint=failure)
    factor = _rate(watch, begun_s, math.inf) / capacity[ask.workers]
    capacity |= {n: rate * factor for n, rate in capacity.items()}
    tell(f"the undisturbed run {play.run.name}: {capacity[ask.workers]:.1f} samples/s")
    return play.run


def played(ask: Ask, steps: int) -> Job:
    """Return the job with another length, laid out for all workers, and with a name of its own."""
    job = ask.job
    body = job.model_dump()
    body["name"] = f"{job.name.removesuffix(SUFFIX)[: 63 - len(SUFFIX)]}{SUFFIX}"
    body["train"] |= {"steps": steps, "tokens": None, "time": None}
    body["elastic"] |= {"spares": ask.spares}
    if job.layout.world == 1:
        body["layout"] |= {"dp": ask.workers}
    return parse(Job, body, job.name)


def _check(ask: Ask) -> None:
    if ask.reference is not None and not ask.reference.finished:
        raise BadInput(
            f"run {ask.reference.name} has not finished", hint="leave out --reference, and one is made"
        )
    before = ask.reference.load().job if ask.reference is not None else ask.job
    if before.elastic.deterministic != ask.job.elastic.deterministic:
        raise BadInput(
            "the reference and the storm must both be deterministic, or neither",
            hint="give or leave out --deterministic as for the reference",
        )


def _await(play: Play, watch: Watch, seen: Callable[[], bool]) -> None:
    """Wait until the journal of a run that goes on tells what is waited for."""
    until = time.monotonic() + PATIENCE_S
    while not seen():
        if not play.lives():
            raise ProcessFailed(f"run {play.run.name} ended early", hint=play.failure())
        if time.monotonic() > until:
            raise ProcessFailed(f"run {play.run.name} did not get on within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
        watch.poll(time.monotonic())


def _calm_rate(play: Play, watch: Watch) -> float:
    begun_s = time.monotonic() + WARM_S
    _await(play, watch, lambda: time.monotonic() > begun_s + CALM_S)
    return _rate(watch, begun_s, begun_s + CALM_S)


def _to_the_end(play: Play, watch: Watch, tell: Tell) -> str | None:
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


def _rate(watch: Watch, from_s: float, until_s: float) -> float:
    """Return samples a second between two moments, by the records nearest to them."""
    first, last = span(positions(watch.seen), from_s, until_s)
    return (last.samples - first.samples) / max(last.at_s - first.at_s, 1e-9)


def _reported(
    ask: Ask,
    run: RunFolder,
    reference: RunFolder,
    storm: Storm,
    watch: Watch,
    capacity: dict[int, float],
    unable: dict[str, str],
    failure: str | None,
) -> Report:
    report = report_on(
        run=run.name,
        reference=reference.name,
        workers=ask.workers,
        spares=ask.spares,
        seed=ask.seed,
        deterministic=ask.job.elastic.deterministic,
        storm=storm,
        seen=watch.seen,
        capacity=capacity,
        unable=unable,
        audit=audit(run.path),
        likeness=None if failure else likeness(reference, run),
        failure=failure,
    )
    place = Place(run.path)
    place.write(REPORT_FILE, (json.dumps(report.body, indent=1, ensure_ascii=False) + "\n").encode())
    place.write(TEXT_FILE, report.text.encode())
    return report
