"""Draws when what goes wrong: all of a storm follows from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = {
    "kill": "SIGKILL a worker",
    "freeze": "SIGSTOP a worker for some seconds",
    "slow": "let a worker run a part of the time only",
    "coordinator": "SIGKILL the leading coordinator",
    "coordinator-freeze": "SIGSTOP the leading coordinator for some seconds",
    "blackout": "SIGKILL all workers at once",
    "corrupt": "flip bytes in the newest checkpoint, then SIGKILL all workers, so that it is wanted",
    "disk": "fill the disk of the checkpoints for some seconds",
    "clock": "set a machine's clock an hour ahead or back for some seconds",
    "partition": "cut machines off from the others for some seconds",
    "delay": "slow the network of a machine down for some seconds",
    "store": "let the checkpoint store fail and be slow for some seconds",
}
SHORTEST_S, LONGEST_S = 5.0, 10.0
"""Of faults that last: longer than a failure may take to be seen, so none heals unnoticed."""


@dataclass(frozen=True)
class ScheduledFault:
    """One fault to come."""

    at_s: float
    """After the beginning of the storm."""
    kind: str
    lasts_s: float
    """For those that heal; a kill is for good."""
    seed: int
    """Decides whom it hits."""


def draw(kinds: Sequence[str], *, seconds: float, every_s: float, seed: int) -> list[ScheduledFault]:
    """Return the faults of a storm: exponential gaps, and every kind once before any comes again."""
    rng, shots, deck = random.Random(seed), list[ScheduledFault](), list[str]()
    at_s = rng.expovariate(1 / every_s)
    while at_s < seconds and kinds:
        if not deck:
            deck = rng.sample(list(kinds), len(kinds))
        lasts_s = rng.uniform(SHORTEST_S, LONGEST_S)
        shots.append(ScheduledFault(round(at_s, 3), deck.pop(), round(lasts_s, 3), rng.getrandbits(32)))
        at_s += rng.expovariate(1 / every_s)
    return shots
