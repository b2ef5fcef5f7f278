"""Runs a chaos experiment: injects each fault at its time, heals it, and reads the journal meanwhile.

Input: scheduled faults, and a target.
Output: the injected faults, when they healed, and the journal records of the run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from windlass.lab.chaos import env_faults, process_faults
from windlass.lab.chaos.injected_fault import InjectedFault, NothingToHit
from windlass.lab.chaos.schedule import ScheduledFault
from windlass.lab.chaos.target import ChaosTarget
from windlass.lab.chaos.watch import JournalWatch

Fault = Callable[[ChaosTarget, random.Random], InjectedFault]

FAULTS: dict[str, Fault] = {
    "kill": process_faults.kill,
    "freeze": process_faults.freeze,
    "slow": process_faults.slow,
    "coordinator": process_faults.coordinator,
    "coordinator-freeze": process_faults.coordinator_freeze,
    "blackout": process_faults.blackout,
    "corrupt": process_faults.corrupt,
    "disk": env_faults.disk,
    "clock": env_faults.clock,
    "partition": env_faults.partition,
    "delay": env_faults.delay,
    "store": env_faults.store,
}

LOOK_EVERY_S = 0.01
PATIENCE_S = 15.0
"""Seconds to wait for a victim: a run that still recovers from the fault before has none."""


@dataclass
class Strike:
    """A fault that was injected."""

    scheduled: ScheduledFault
    fault: InjectedFault
    at_s: float
    generation: int
    """The newest at that time."""
    epoch: int
    healed_s: float | None = None
    """None while it lasts, and for permanent faults."""


@dataclass(frozen=True)
class Miss:
    """A fault that found no victim."""

    scheduled: ScheduledFault
    reason: str


@dataclass
class Experiment:
    """The events of an experiment, by our own monotonic clock."""

    begun_s: float
    ended_s: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)


def inject_faults(
    target: ChaosTarget,
    watch: JournalWatch,
    schedule: Sequence[ScheduledFault],
    *,
    seconds: float,
    lives: Callable[[], bool],
    tell: Callable[[str], None],
) -> Experiment:
    """Inject the scheduled faults until the time is up or the run ends; heal all of them at the end."""
    experiment, waiting = Experiment(time.monotonic()), list(schedule)
    try:
        while (now_s := time.monotonic()) < experiment.begun_s + seconds and lives():
            watch.poll(now_s)
            _tend(experiment, now_s)
            waiting = _inject_due(experiment, target, watch, waiting, now_s, tell)
            time.sleep(LOOK_EVERY_S)
    finally:
        experiment.ended_s = time.monotonic()
        for strike in experiment.strikes:
            _heal(strike)
    experiment.misses += [Miss(scheduled, "the experiment was over") for scheduled in waiting]
    return experiment


def _tend(experiment: Experiment, now_s: float) -> None:
    """Heal faults whose time is over; keep the others active."""
    for strike in experiment.strikes:
        if strike.fault.lasts and strike.healed_s is None:
            if now_s >= strike.at_s + strike.scheduled.lasts_s:
                _heal(strike)
            else:
                strike.fault.tick(now_s)


def _heal(strike: Strike) -> None:
    if strike.fault.lasts and strike.healed_s is None:
        strike.fault.heal()
        strike.healed_s = time.monotonic()


def _inject_due(
    experiment: Experiment,
    target: ChaosTarget,
    watch: JournalWatch,
    waiting: list[ScheduledFault],
    now_s: float,
    tell: Callable[[str], None],
) -> list[ScheduledFault]:
    """Inject the faults that are due; return those that are not due or have no victim yet."""
    left = []
    for scheduled in waiting:
        late_s = now_s - experiment.begun_s - scheduled.at_s
        if late_s < 0:
            left.append(scheduled)
            continue
        try:
            strike = _inject(scheduled, target, watch)
        except (NothingToHit, psutil.NoSuchProcess) as error:
            if late_s < PATIENCE_S:
                left.append(scheduled)
            else:
                experiment.misses.append(Miss(scheduled, str(error)))
                tell(f"{scheduled.at_s:6.1f} s  {scheduled.kind}: {error}")
        else:
            experiment.strikes.append(strike)
            tell(f"{strike.at_s - experiment.begun_s:6.1f} s  {scheduled.kind}: {strike.fault.note}")
    return left


def _inject(scheduled: ScheduledFault, target: ChaosTarget, watch: JournalWatch) -> Strike:
    """Inject one fault. The time is taken before, so that no victim is detected before it was hit."""
    members = target.members()
    generation = max(members.generation, watch.generation)
    at_s = time.monotonic()
    fault = FAULTS[scheduled.kind](target, random.Random(scheduled.seed))
    return Strike(scheduled, fault, at_s, generation, max(members.epoch, watch.epoch))
