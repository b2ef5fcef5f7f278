"""Faults caused by signals: processes that are killed, frozen or slowed down.

Every fault takes effect at once and returns an InjectedFault, which can be healed. What each proves:

    kill                 a dead process is detected at once, the others keep their memory and continue
    freeze               a frozen process is detected by its silence; when it wakes up, it does no harm
    slow                 a slow process does not slow down all others
    coordinator          steps need no coordinator, and another takes over
    coordinator-freeze   a leader that wakes up late learns that it was superseded
    blackout             with no memory left, training resumes from the newest checkpoint
    corrupt              a damaged checkpoint is skipped in favour of the one before
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
"""Share of the time in which a slowed worker may run."""
SLOW_PERIOD_S = 0.1
"""Short compared with the heartbeat timeout: the worker is slow, not frozen."""


def kill(target: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(target.workers())
    return _killed([victim])


def blackout(target: ChaosTarget, rng: random.Random) -> InjectedFault:
    return _killed(_all_workers(target))


def corrupt(target: ChaosTarget, rng: random.Random) -> InjectedFault:
    victims = _all_workers(target)
    damaged = corrupt_newest(target.run, rng)
    fault = _killed(victims)
    fault.note, fault.facts = f"damaged {damaged}", {"checkpoint": damaged}
    return fault


def freeze(target: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(target.workers())
    fault = _frozen(victim.process, target, (victim,))
    fault.workers = (victim.worker,)
    return fault


def slow(target: ChaosTarget, rng: random.Random) -> InjectedFault:
    victim = rng.choice(target.workers())
    throttle = Throttle(victim.process, SLOW_SHARE, SLOW_PERIOD_S)
    target.away.add(victim.worker)

    def heal() -> None:
        throttle.end()
        target.away.discard(victim.worker)

    return InjectedFault(
        (victim.worker,),
        share_left=SLOW_SHARE,
        interrupts=False,
        note=f"runs {SLOW_SHARE:.0%} of the time",
        heal=heal,
        tick=throttle.tick,
    )


def coordinator(target: ChaosTarget, _rng: random.Random) -> InjectedFault:
    leader = _leader(target)
    leader.kill()
    return InjectedFault(lasts=False, interrupts=False, note=f"leader, process {leader.pid}")


def coordinator_freeze(target: ChaosTarget, _rng: random.Random) -> InjectedFault:
    leader = _leader(target)
    fault = _frozen(leader, target, ())
    fault.interrupts, fault.note = False, f"leader, process {leader.pid}"
    return fault


class Throttle:
    """Throttles a process to a share of every period, with SIGSTOP and SIGCONT."""

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


def _frozen(process: psutil.Process, target: ChaosTarget, victims: Sequence[TargetWorker]) -> InjectedFault:
    process.suspend()
    target.away |= {victim.worker for victim in victims}

    def heal() -> None:
        target.away.difference_update(victim.worker for victim in victims)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    return InjectedFault(note=", ".join(f"rank {victim.rank}" for victim in victims), heal=heal)


def _all_workers(target: ChaosTarget) -> list[TargetWorker]:
    """Return all workers and spares: a survivor would still have the state in its memory."""
    found = [worker for worker in target.members().workers if target.owns(worker.pid)]
    if not any(worker.rank is not None for worker in found):
        raise NothingToHit("no worker is training")
    return found


def _leader(target: ChaosTarget) -> psutil.Process:
    pid = target.members().coordinator
    if not target.owns(pid) or psutil.Process(pid).status() == psutil.STATUS_STOPPED:
        raise NothingToHit("no coordinator leads")
    return psutil.Process(pid)
