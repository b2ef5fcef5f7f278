"""Runs layouts on this machine and compares predictions with measurements.

    trials -> plan each, as any job is planned -> predict from the profile -> run it through the launcher
           -> seconds of its steps, peak memory of its processes -> errors

Seconds are the mean of the fastest quarter of the steps, as in the probe: both measure the undisturbed
machine. Before and after each trial a short matrix product shows how much slower the machine is than during
the probe. That is reported and changes nothing: products take milliseconds, and say little about the seconds
of a step (docs/log.md). Memory is the largest VmHWM, the kernel's high-water mark of resident memory, of any
process of the run until its last step: unlike samples of the resident size it misses no peak. Nothing is
fitted to the trials.
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
"""The first step is always slow, and a quarter of the others must be at least one."""
FOLDER = "verify"
PACKAGES = ("asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "importlib", "logging")
VOCABULARY = 4096


@dataclass(frozen=True)
class Verified:
    """One layout: predicted and measured."""

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
    """How many times slower a short matrix product was than during the probe."""
    parts_s: dict[str, float]

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1


def default_job() -> Job:
    """A job on a part of Python's source: real text that every machine has."""
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
    """Run all trials; `tell` is called with each result."""
    if steps < MIN_STEPS:
        raise BadInput(f"--steps {steps}: must be at least {MIN_STEPS}")
    plan_job(trials[0].job(job, steps), home, report)  # builds the corpus once, with visible progress
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
    """Disable everything but steps and the short final evaluation, which every run has."""
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
    """Return the largest high-water mark of this process's children."""
    marks = [0]
    for child in psutil.Process().children():
        status = Path(f"/proc/{child.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        marks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return max(marks)
