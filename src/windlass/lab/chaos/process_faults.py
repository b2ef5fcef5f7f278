"""Faults that signals make: processes that die, stand still, or crawl.

Every fault hits at once and returns a Wound, which knows how to heal. What each proves:

    kill                 a dead process is seen at once, the others keep their memory and go on
    freeze               a silent process is seen without a word from it; awake again, it harms nobody
    slow                 a crawling process does not set the pace of all
    coordinator          steps need no coordinator, and another takes over
    coordinator-freeze   a leader that wakes up late learns that it was deposed
    blackout             with no memory left, the newest checkpoint counts, and its samples
    corrupt              a damaged checkpoint is passed over for the one before
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import psutil

from windlass.lab.chaos.disk import corrupt_newest
from windlass.lab.chaos.injected_fault import InjectedFault, NothingToHit
from windlass.lab.chaos.target import ChaosTarget, TargetWorker

SLOW_SHARE = 0.4
"""Of the time in which a slowed worker may run."""
SLOW_PERIOD_S = 0.1
"""Short beside the silence after which a worker counts as lost: it crawls, it does not stand still."""


def kill(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(scene.workers())
    return _killed([victim])


def blackout(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    return _killed(_everybody(scene))


def corrupt(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    victims = _everybody(scene)
    damaged = corrupt_newest(scene.run, rng)
    wound = _killed(victims)
    wound.note, wound.facts = f"damaged {damaged}", {"checkpoint": damaged}
    return wound


def freeze(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(scene.workers())
    wound = _frozen(victim.process, scene, (victim,))
    wound.workers = (victim.worker,)
    return wound


def slow(scene: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(scene.workers())
    crawl = Crawl(victim.process, SLOW_SHARE, SLOW_PERIOD_S)
    scene.away.add(victim.worker)

    def heal() -> None:
        crawl.end()
        scene.away.discard(victim.worker)

    return InjectedFault(
        (victim.worker,),
        share_left=SLOW_SHARE,
        interrupts=False,
        note=f"runs {SLOW_SHARE:.0%} of the time",
        heal=heal,
        tick=crawl.tick,
    )


def coordinator(scene: ChaosTarget, _rng: random.Random) -> InjectedFault:
    leader = _leader(scene)
    leader.kill()
    return InjectedFault(lasts=False, interrupts=False, note=f"leader, process {leader.pid}")


def coordinator_freeze(scene: ChaosTarget, _rng: random.Random) -> InjectedFault:
    leader = _leader(scene)
    wound = _frozen(leader, scene, ())
    wound.interrupts, wound.note = False, f"leader, process {leader.pid}"
    return wound


class Crawl:
    """Lets a process run for a share of every period, by stopping and waking it."""

    def __init__(self, process: psutil.Process, share: float, period_s: float) -> None:
        self._process = process
        self._share = share
        self._period_s = period_s
        self._stopped = False

    def tick(self, now_s: float) -> None:
        self._stop(stopped=now_s % self._period_s > self._share * self._period_s)

    def end(self) -> None:
        self._stop(stopped=False)

    def _stop(self, *, stopped: bool) -> None:
        if stopped != self._stopped:
            self._stopped = stopped
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.suspend() if stopped else self._process.resume()


def _killed(victims: Sequence[TargetWorker]) -> InjectedFault:
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.process.kill()
    ranks = ", ".join(f"rank {victim.rank}" for victim in victims)
    return InjectedFault(tuple(victim.worker for victim in victims), lasts=False, note=ranks)


def _frozen(process: psutil.Process, scene: ChaosTarget, victims: Sequence[TargetWorker]) -> InjectedFault:
    process.suspend()
    scene.away |= {victim.worker for victim in victims}

    def heal() -> None:
        scene.away.difference_update(victim.worker for victim in victims)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    return InjectedFault(note=", ".join(f"rank {victim.rank}" for victim in victims), heal=heal)


def _everybody(scene: ChaosTarget) -> list[TargetWorker]:
    """Return all workers, spares too: one that lived would still have the state in its memory."""
    found = [worker for worker in scene.members().workers if scene.owns(worker.pid)]
    if not any(worker.rank is not None for worker in found):
        raise NothingToHit("no worker is training")
    return found


def _leader(scene: ChaosTarget) -> psutil.Process:
    pid = scene.members().coordinator
    if not scene.owns(pid) or psutil.Process(pid).status() == psutil.STATUS_STOPPED:
        raise NothingToHit("no coordinator leads")
    return psutil.Process(pid)
