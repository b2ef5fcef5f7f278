"""All faults by their kinds."""

from __future__ import annotations

import random
from collections.abc import Callable

from windlass.lab.chaos import env_faults, process_faults
from windlass.lab.chaos.injected_fault import InjectedFault
from windlass.lab.chaos.target import ChaosTarget

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
