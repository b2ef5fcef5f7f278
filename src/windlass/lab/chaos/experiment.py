"""Lets a storm pass over a run: strikes when its time has come, heals, and watches all the while.

Input: faults to come, and a scene.
Output: what was struck, when it healed, and all that the run wrote meanwhile.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from windlass.lab.chaos.fault_catalog import ARSENAL
from windlass.lab.chaos.injected_fault import InjectedFault, NothingToHit
from windlass.lab.chaos.schedule import ScheduledFault
from windlass.lab.chaos.target import ChaosTarget
from windlass.lab.chaos.watch import JournalWatch

LOOK_EVERY_S = 0.01
PATIENCE_S = 15.0
"""For somebody to be there to be hit: a run that still recovers from the fault before has nobody."""


@dataclass
class Strike:
    """A fault that happened."""

    shot: ScheduledFault
    wound: InjectedFault
    at_s: float
    generation: int
    """The newest when it happened."""
    epoch: int
    healed_s: float | None = None
    """None while it is open, and for good."""


@dataclass(frozen=True)
class Miss:
    """A fault that found nobody to hit."""

    shot: ScheduledFault
    reason: str


@dataclass
class Experiment:
    """What happened, by our own monotonic clock."""

    begun_s: float
    ended_s: float = 0.0
    strikes: list[Strike] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)


def pass_over(
    scene: ChaosTarget,
    watch: JournalWatch,
    shots: Sequence[ScheduledFault],
    *,
    seconds: float,
    lives: Callable[[], bool],
    tell: Callable[[str], None],
) -> Experiment:
    """Strike as the schedule says until its time or the run is over, and leave nothing unhealed."""
    storm, waiting = Experiment(time.monotonic()), list(shots)
    try:
        while (now_s := time.monotonic()) < storm.begun_s + seconds and lives():
            watch.poll(now_s)
            _tend(storm, now_s)
            waiting = _strike_due(storm, scene, watch, waiting, now_s, tell)
            time.sleep(LOOK_EVERY_S)
    finally:
        storm.ended_s = time.monotonic()
        for strike in storm.strikes:
            _heal(strike)
    storm.misses += [Miss(shot, "the storm was over") for shot in waiting]
    return storm


def _tend(storm: Experiment, now_s: float) -> None:
    """Heal what has lasted its time; keep the others going."""
    for strike in storm.strikes:
        if strike.wound.lasts and strike.healed_s is None:
            if now_s >= strike.at_s + strike.shot.lasts_s:
                _heal(strike)
            else:
                strike.wound.tick(now_s)


def _heal(strike: Strike) -> None:
    if strike.wound.lasts and strike.healed_s is None:
        strike.wound.heal()
        strike.healed_s = time.monotonic()


def _strike_due(
    storm: Experiment,
    scene: ChaosTarget,
    watch: JournalWatch,
    waiting: list[ScheduledFault],
    now_s: float,
    tell: Callable[[str], None],
) -> list[ScheduledFault]:
    """Strike with those whose time has come; return those that are still to come or found nobody yet."""
    left = []
    for shot in waiting:
        late_s = now_s - storm.begun_s - shot.at_s
        if late_s < 0:
            left.append(shot)
            continue
        try:
            strike = _struck(shot, scene, watch)
        except (NothingToHit, psutil.NoSuchProcess) as nobody:
            if late_s < PATIENCE_S:
                left.append(shot)
            else:
                storm.misses.append(Miss(shot, str(nobody)))
                tell(f"{shot.at_s:6.1f} s  {shot.kind}: {nobody}")
        else:
            storm.strikes.append(strike)
            tell(f"{strike.at_s - storm.begun_s:6.1f} s  {shot.kind}: {strike.wound.note}")
    return left


def _struck(shot: ScheduledFault, scene: ChaosTarget, watch: JournalWatch) -> Strike:
    """The moment is taken before: the first victim of several must not look seen earlier than hit."""
    members = scene.members()
    generation = max(members.generation, watch.generation)
    at_s = time.monotonic()
    wound = ARSENAL[shot.kind](scene, random.Random(shot.seed))
    return Strike(shot, wound, at_s, generation, max(members.epoch, watch.epoch))
