"""Decides which members of a group get room on this machine, and which cores and GPUs are theirs."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.cluster.backend import Resources
from windlass.cluster.launch.cores import own_cores
from windlass.cluster.local.local_state import AssignedCores
from windlass.spec.units import format_bytes


@dataclass(frozen=True)
class LocalMachine:
    """What there is to give away."""

    cores: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class CoreAssignment:
    """The seats that were found, by index, and what is missing for the others, in words."""

    seats: Mapping[int, AssignedCores]
    reason: str = ""


def this_machine(devices: Path = Path("/dev")) -> LocalMachine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return LocalMachine(tuple(own_cores()), memory, tuple(sorted(int(n[1]) for n in numbers if n)))


def free_of(machine: LocalMachine, taken: Iterable[AssignedCores]) -> Resources:
    """Return what nobody has asked for."""
    seats = list(taken)
    return Resources(
        cores=round(len(machine.cores) - sum(seat.share for seat in seats), 3),
        memory_bytes=machine.memory_bytes - sum(seat.memory_bytes for seat in seats),
        gpus=len(machine.gpus) - sum(len(seat.gpus) for seat in seats),
    )


def find_room(
    machine: LocalMachine,
    taken: Iterable[AssignedCores],
    need: Resources,
    indices: Sequence[int],
    *,
    gang: bool,
) -> CoreAssignment:
    """Seat as many members as there is room for; of a gang, all or none.

    Who asks for no cores takes none from others. Cores that fewest have are given first, neighbours
    together; a member never gets the same core twice.
    """
    seats, given = list(taken), dict[int, AssignedCores]()
    for index in indices:
        missing = _missing(free_of(machine, seats), need, machine)
        if missing:
            still = len(indices) - len(given)
            reason = f"no room for {still} of {len(indices)} here: {missing}"
            return CoreAssignment({} if gang else given, reason)
        given[index] = _seat(machine, seats, need)
        seats.append(given[index])
    return CoreAssignment(given)


def _missing(free: Resources, need: Resources, machine: LocalMachine) -> str:
    if need.cores is not None and need.cores > (free.cores or 0.0):
        return f"{need.cores:g} cores are asked for, {free.cores:g} of {len(machine.cores)} are free"
    if need.memory_bytes is not None and need.memory_bytes > (free.memory_bytes or 0):
        asked, left = format_bytes(need.memory_bytes), format_bytes(free.memory_bytes or 0)
        return f"{asked} of memory are asked for, {left} are free"
    if need.gpus > free.gpus:
        return f"{need.gpus} GPUs are asked for, {free.gpus} of {len(machine.gpus)} are free"
    return ""


def _seat(machine: LocalMachine, taken: Sequence[AssignedCores], need: Resources) -> AssignedCores:
    used = Counter(core for seat in taken for core in seat.cores)
    count = min(len(machine.cores), math.ceil(need.cores)) if need.cores is not None else 0
    order = {core: place for place, core in enumerate(machine.cores)}
    cores = sorted(sorted(machine.cores, key=lambda c: (used[c], order[c]))[:count], key=order.__getitem__)
    busy = {gpu for seat in taken for gpu in seat.gpus}
    gpus = tuple(gpu for gpu in machine.gpus if gpu not in busy)[: need.gpus]
    return AssignedCores(tuple(cores), need.cores or 0.0, need.memory_bytes or 0, gpus)
