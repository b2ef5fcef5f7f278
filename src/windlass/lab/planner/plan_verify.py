"""Runs layouts on this machine and holds predictions against what they took.

    trials -> plan each, as any job is planned -> predict from the profile -> run it through the launcher
           -> seconds of its steps, peak memory of its processes -> errors

Seconds are the mean of the quickest quarter of the steps, which is how the probe measured too: both say what
the machine does when nobody disturbs it. Before and after each trial a short product tells how much slower
the machine is than when it was probed. That is told and changes nothing: products last for milliseconds, and
what they meet says little of the seconds that a step takes (docs/log.md). Memory is the largest VmHWM, the
kernel's high-water mark of resident memory, of any process of the run until its last step: unlike a sample of
the resident size it misses no peak. Nothing is fitted to the trials.
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from windlass.lab.planner.trials import PlanTrial
from windlass.plan.local.machine import measure_machine
from windlass.plan.local.memory import LocalMemory, local_memory
from windlass.plan.local.profile import Profile, quickest_quarter
from windlass.plan.local.step import LocalStep, local_step, step_of
from windlass.runs.training import RunFolder, plan_job, train
from windlass.spec.errors import BadInput
from windlass.spec.job import Corpus, Job, TokenizerSpec
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.spec.run import RUN_FILE, Run
from windlass.store.store_dir import StoreDir

MIN_STEPS = 4
"""The first is slow by itself, and a quarter of the others must be at least one."""
FOLDER = "verify"
PACKAGES = ("asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "importlib", "logging")
VOCABULARY = 4096


@dataclass(frozen=True)
class Verified:
    """One layout: what was predicted, and what came."""

    name: str
    parameters: int
    layout: str
    processes: int
    threads: int
    micro_batch: int
    predicted_s: float
    measured_s: float
    predicted_bytes: int
    measured_bytes: int
    busy: float
    """How many times slower a short product was than when the machine was probed."""
    parts_s: dict[str, float]

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def default_job() -> Job:
    """A job on a part of Python's own source: real text that is on every machine."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    sources = tuple(str(stdlib / name) for name in PACKAGES)
    return Job(name="verify", corpus=Corpus(sources=sources, tokenizer=TokenizerSpec(vocabulary=VOCABULARY)))


def verify(
    profile: Profile,
    job: Job,
    trials: Sequence[PlanTrial],
    home: Path,
    report: Report,
    *,
    steps: int,
    tell: Callable[[Verified], None],
) -> list[Verified]:
    """Run all trials; `tell` hears of each as it ends."""
    if steps < MIN_STEPS:
        raise BadInput(f"--steps {steps}: must be at least {MIN_STEPS}")
    plan_job(trials[0].job(job, steps), home, report)  # builds the corpus once, in sight
    found = []
    for number, trial in enumerate(trials):
        report(Progress("layouts", number, len(trials), "layouts", {"now": trial.name}))
        found.append(_verified(profile, trial, job, home, steps))
        tell(found[-1])
    report(Progress("layouts", len(trials), len(trials), "layouts"))
    return found


def figures(found: Sequence[Verified]) -> dict[str, float]:
    return {
        "time_mape": sum(abs(one.time_error) for one in found) / len(found),
        "memory_mape": sum(abs(one.memory_error) for one in found) / len(found),
        "layouts": len(found),
    }


def as_json(found: Sequence[Verified]) -> dict[str, Any]:
    rows = [{**asdict(one), "time_error": one.time_error, "memory_error": one.memory_error} for one in found]
    return {
        "figures": figures(found),
        "layouts": rows,
        "calibration": "the probe; no constant is fitted to these runs while they are verified",
    }


def _verified(profile: Profile, trial: PlanTrial, job: Job, home: Path, steps: int) -> Verified:
    run = _brief(plan_job(trial.job(job, steps), home, silent))
    before = measure_machine().peak_flops
    measured_s, measured_bytes = _measured(run, home / FOLDER / trial.name)
    busy = profile.peak_flops / max(before, measure_machine().peak_flops)
    step, memory = _predicted(profile, run)
    return Verified(
        name=trial.name,
        parameters=run.shape.parameters,
        layout=str(run.layout),
        processes=run.layout.world,
        threads=run.threads if run.layout.world == 1 else max(1, profile.cores // run.layout.world),
        micro_batch=run.micro_batch_sequences,
        predicted_s=step.seconds,
        measured_s=measured_s,
        predicted_bytes=memory.bytes,
        measured_bytes=measured_bytes,
        busy=busy,
        parts_s=step.parts,
    )


def _predicted(profile: Profile, run: Run) -> tuple[LocalStep, LocalMemory]:
    step = step_of(run)
    return local_step(profile, step), local_memory(profile, step)


def _brief(run: Run) -> Run:
    """Leave out what is not a step: nothing but a short evaluation at the end, which a run always has."""
    return run.model_copy(
        update={
            "final_sequences": 2 * run.layout.replicas,
            "evaluate_every": run.steps + 1,
            "checkpoint_every": run.steps + 1,
        }
    )


def _measured(run: Run, folder: Path) -> tuple[float, int]:
    """Train, and return the seconds of a step and the peak memory of the fullest process."""
    times: list[float] = []
    peak = 0

    def look(event: dict[str, Any]) -> None:
        nonlocal peak
        if event.get("event") == "step":
            times.append(float(event["time"]))
            peak = max(peak, peak_bytes())

    shutil.rmtree(folder, ignore_errors=True)
    try:
        StoreDir(folder).write(RUN_FILE, run.model_dump_json(indent=1).encode())
        train(RunFolder(folder), look)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return quickest_quarter([later - earlier for earlier, later in pairwise(times)]), peak


def peak_bytes() -> int:
    """Return the largest high-water mark among the processes that this one has started."""
    marks = [0]
    for child in psutil.Process().children():
        status = Path(f"/proc/{child.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        marks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return max(marks)
