"""Runs a job without faults, then with faults, and reports the differences.

Input: a ChaosRequest.
Output: a ChaosReport, also as chaos.json and chaos.txt in the run's directory.
"""

from __future__ import annotations

import json
from pathlib import Path

from windlass.lab.chaos.baseline import (
    ChaosRequest,
    Tell,
    await_seen,
    baseline_rates,
    baseline_run,
    to_the_end,
    trial_job,
)
from windlass.lab.chaos.compare_runs import likeness
from windlass.lab.chaos.environment import ChaosEnvironment, why_not
from windlass.lab.chaos.experiment import Experiment, inject_faults
from windlass.lab.chaos.measure import MeasuredCapacity, num_workers
from windlass.lab.chaos.report import ChaosReport, report_on
from windlass.lab.chaos.schedule import draw
from windlass.lab.chaos.watch import JournalWatch
from windlass.runs.audit import audit
from windlass.runs.training import RunFolder
from windlass.spec.errors import BadInput
from windlass.spec.protocol.progress import Report as Progressing
from windlass.spec.run import JOURNAL
from windlass.store.store_dir import StoreDir

REPORT_FILE, TEXT_FILE = "chaos.json", "chaos.txt"


def chaos(ask: ChaosRequest, home: Path, progress: Progressing, tell: Tell) -> ChaosReport:
    """Run the baseline and the experiment, and write the report."""
    _check(ask)
    unable = why_not(ask.kinds)
    for kind, reason in unable.items():
        tell(f"no {kind} faults here: {reason}")
    with ChaosEnvironment(home, ask.workers, [kind for kind in ask.kinds if kind not in unable]) as env:
        if env.network is not None and not env.network.delay and "delay" in ask.kinds:
            unable["delay"] = "this kernel has no queue that delays packets"
        kinds = [kind for kind in ask.kinds if kind not in unable]
        capacity, reference = baseline_rates(env, ask, progress, tell), ask.reference
        if reference is None:
            reference, capacity = baseline_run(env, ask, capacity, progress, tell)
        job = trial_job(ask, reference.load().steps)
        schedule = draw(kinds, seconds=ask.seconds, every_s=ask.every_s, seed=ask.seed)
        with env.start_trial(job, progress, ask.workers) as trial:
            watch = JournalWatch(trial.run.path / JOURNAL)
            await_seen(trial, watch, lambda: num_workers(watch.seen) > 0)
            tell(f"run {trial.run.name}: {len(schedule)} faults scheduled in {ask.seconds:.0f} s")
            experiment = inject_faults(
                trial.target, watch, schedule, seconds=ask.seconds, lives=trial.lives, tell=tell
            )
            failure = to_the_end(trial, watch)
    return _reported(ask, trial.run, reference, experiment, watch, capacity, unable, failure)


def _check(ask: ChaosRequest) -> None:
    if ask.reference is not None and not ask.reference.finished:
        raise BadInput(
            f"run {ask.reference.name} has not finished", hint="leave out --reference, and one is made"
        )
    before = ask.reference.load().job if ask.reference is not None else ask.job
    if before.elastic.deterministic != ask.job.elastic.deterministic:
        raise BadInput(
            "the reference and the experiment must both be deterministic, or neither",
            hint="give or leave out --deterministic as for the reference",
        )


def _reported(
    ask: ChaosRequest,
    run: RunFolder,
    reference: RunFolder,
    experiment: Experiment,
    watch: JournalWatch,
    capacity: MeasuredCapacity,
    unable: dict[str, str],
    failure: str | None,
) -> ChaosReport:
    report = report_on(
        run=run.name,
        reference=reference.name,
        workers=ask.workers,
        spares=ask.spares,
        seed=ask.seed,
        deterministic=ask.job.elastic.deterministic,
        experiment=experiment,
        seen=watch.seen,
        capacity=capacity,
        unable=unable,
        audit=audit(run.path),
        likeness=None if failure else likeness(reference, run),
        failure=failure,
    )
    place = StoreDir(run.path)
    place.write(REPORT_FILE, (json.dumps(report.body, indent=1, ensure_ascii=False) + "\n").encode())
    place.write(TEXT_FILE, report.text.encode())
    return report
