"""All faults by their names, and why one cannot be had here."""

from __future__ import annotations

import random
from collections.abc import Callable

from windlass.operate.chaos import faults, surroundings
from windlass.operate.chaos.scene import Scene
from windlass.operate.chaos.wound import Wound

Fault = Callable[[Scene, random.Random], Wound]

ARSENAL: dict[str, Fault] = {
    "kill": faults.kill,
    "freeze": faults.freeze,
    "slow": faults.slow,
    "coordinator": faults.coordinator,
    "coordinator-freeze": faults.coordinator_freeze,
    "blackout": faults.blackout,
    "corrupt": faults.corrupt,
    "disk": surroundings.disk,
    "clock": surroundings.clock,
    "partition": surroundings.partition,
    "delay": surroundings.delay,
    "store": surroundings.store,
}
