"""Corrects predictions for this machine by finished runs.

Input: the journals of runs, and their predictions today, without any correction. Output: a factor for
predicted seconds and its uncertainty. It is the mean of the logarithms of measured over predicted, drawn
towards no correction as long as there are few runs: a normal prior on a normal mean (Gelman et al. 2013,
Bayesian Data Analysis, section 2.5). Runs that are off by more than LARGEST were disturbed or are something
else than what is predicted; they count as much as LARGEST and no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from windlass.plan.local.profile import Profile, find_profile
from windlass.plan.local.step import local_step, step_of
from windlass.spec.run import JOURNAL, RUN_FILE, Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

PRIOR = 0.15
"""How far predictions from a profile are usually off, as a deviation of the logarithm."""
NOISE = 0.10
"""How far two runs of one machine usually differ in it, at least."""
LARGEST = 2.0
MIN_STEPS = 8
"""A run of fewer tells more of its start than of its steps."""
NEWEST = 50
COUNTED_PRIOR, COUNTED_LARGEST = 0.4, 8.0
"""The same of families that are counted, which no profile measures."""
DISTURBED = ("lost", "joined", "restarted", "resumed", "paused")


@dataclass(frozen=True)
class Correction:
    """What to multiply predicted seconds by."""

    factor: float = 1.0
    deviation: float = math.hypot(PRIOR, NOISE)
    """Of the logarithm of what a run will take over what is predicted with the factor."""
    runs: int = 0

    def interval(self, seconds: float) -> tuple[float, float]:
        """Return the range that four of five runs should fall into."""
        return seconds * math.exp(-1.28 * self.deviation), seconds * math.exp(1.28 * self.deviation)


def calibrate(ratios: Sequence[float], *, prior: float = PRIOR, largest: float = LARGEST) -> Correction:
    """Return the correction for a list of ratios, measured over predicted seconds, one per run.

    `prior` is how far predictions are usually off without it.
    """
    if not ratios:
        return Correction(deviation=math.hypot(prior, NOISE))
    bound = math.log(largest)
    logs = [max(-bound, min(bound, math.log(ratio))) for ratio in ratios]
    noise = max(NOISE, statistics.stdev(logs) if len(logs) > 2 else 0.0)
    certainty = len(logs) / noise**2 + 1 / prior**2
    mean = sum(logs) / noise**2 / certainty
    return Correction(math.exp(mean), math.hypot(noise, certainty**-0.5), len(logs))


@dataclass(frozen=True)
class Experience:
    """What is known of this machine: its profile, and the correction by its runs."""

    profile: Profile
    correction: Correction = Correction()


def find_experience(home: Path) -> Experience | None:
    """Return the profile of this machine and the correction by its newest runs; None without a profile."""
    profile = find_profile(home)
    if profile is None:
        return None
    folders = sorted(home.glob(f"runs/*/*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)[-NEWEST:]
    ratios = [ratio for path in folders for ratio in _ratio(path.parent, profile)]
    return Experience(profile, calibrate(ratios))


def find_counted(home: Path, family: str) -> Correction:
    """Return how far predictions of a family that is counted were off in the runs of a home."""
    folders = sorted(home.glob(f"runs/*/*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)[-NEWEST:]
    ratios = [ratio for path in folders for ratio in _counted_ratio(path.parent, family)]
    return calibrate(ratios, prior=COUNTED_PRIOR, largest=COUNTED_LARGEST)


def _counted_ratio(folder: Path, family: str) -> Iterator[float]:
    """Yield measured over predicted seconds of a step of a run that ended and was not disturbed."""
    try:
        run = Run.model_validate_json((folder / RUN_FILE).read_bytes())
    except ValidationError:
        return
    events = {str(record.get("event")): record for record in Journal(StoreDir(folder), JOURNAL).read()}
    ended = {"started", "finished"} <= events.keys() and not events.keys() & {*DISTURBED, "stopped"}
    if run.shape.family == family and run.predicted.plain_s and ended:
        seconds = events["finished"]["time"] - events["started"]["time"]
        yield seconds / events["finished"]["step"] / (run.predicted.plain_s / run.steps)


def measured_step_s(records: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the median seconds of a step, None where a journal has too few.

    Only times between two steps with no other event in between count: evaluations and checkpoints are not
    steps.
    """
    counted, between, last = 0, [], None
    for record in records:
        if record.get("event") in DISTURBED:
            return None
        if record.get("event") == "step":
            if last is not None and record["step"] > last["step"]:
                steps = record["step"] - last["step"]
                between.append((record["time"] - last["time"]) / steps)
                counted += steps
            last = record
        elif record.get("event") != "ledger":
            last = None
    usable = [seconds for seconds in between[1:] if seconds > 0]
    return statistics.median(usable) if counted >= MIN_STEPS and usable else None


def _ratio(folder: Path, profile: Profile) -> Iterator[float]:
    """Yield measured over predicted seconds of a run's step, if it can be said."""
    try:
        run = Run.model_validate_json((folder / RUN_FILE).read_bytes())
    except ValidationError:
        return  # of another version, whose runs say little of this one
    records = list(Journal(StoreDir(folder), JOURNAL).read())
    seconds = measured_step_s(records)
    is_here = any(r.get("event") == "started" and r.get("device") == "cpu" for r in records)
    if seconds is not None and is_here and run.job.machine.precision == "float32":
        yield seconds / local_step(profile, step_of(run)).seconds
