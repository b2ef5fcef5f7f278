"""Draws the faults of an experiment and their times from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = {
    "kill": "SIGKILL a worker",
    "freeze": "SIGSTOP a worker for some seconds",
    "slow": "throttle a worker for some seconds",
    "coordinator": "SIGKILL the leading coordinator",
    "coordinator-freeze": "SIGSTOP the leading coordinator for some seconds",
    "blackout": "SIGKILL all workers at once",
    "corrupt": "flip bytes in the newest checkpoint, then SIGKILL all workers, so that it is needed",
    "disk": "fill the disk of the checkpoints for some seconds",
    "clock": "set a node's clock an hour ahead or back for some seconds",
    "partition": "cut nodes off from the others for some seconds",
    "delay": "slow the network of a node down for some seconds",
    "store": "make the checkpoint store slow and failing for some seconds",
}
SHORTEST_S, LONGEST_S = 5.0, 10.0
"""Duration of temporary faults: longer than detection may take, so none heals undetected."""


@dataclass(frozen=True)
class ScheduledFault:
    """One scheduled fault."""

    at_s: float
    """After the beginning of the experiment."""
    kind: str
    lasts_s: float
    """For temporary faults; a kill is permanent."""
    seed: int
    """Decides the victim."""


def draw(kinds: Sequence[str], *, seconds: float, every_s: float, seed: int) -> list[ScheduledFault]:
    """Return the faults of an experiment: exponential gaps, and every kind once before any repeats."""
    rng, faults, deck = random.Random(seed), list[ScheduledFault](), list[str]()
    at_s = rng.expovariate(1 / every_s)
    while at_s < seconds and kinds:
        if not deck:
            deck = rng.sample(list(kinds), len(kinds))
        lasts_s = rng.uniform(SHORTEST_S, LONGEST_S)
        faults.append(ScheduledFault(round(at_s, 3), deck.pop(), round(lasts_s, 3), rng.getrandbits(32)))
        at_s += rng.expovariate(1 / every_s)
    return faults
