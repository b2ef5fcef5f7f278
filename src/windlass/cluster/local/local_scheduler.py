"""Assigns cores, memory and GPUs of this machine to the members of a group."""

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
    """The resources of this machine."""

    cores: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class CoreAssignment:
    """The assignments by index, and what is missing for the other members, as a sentence."""

    assignments: Mapping[int, AssignedCores]
    reason: str = ""


def this_machine(devices: Path = Path("/dev")) -> LocalMachine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return LocalMachine(tuple(own_cores()), memory, tuple(sorted(int(n[1]) for n in numbers if n)))


def free_of(machine: LocalMachine, taken: Iterable[AssignedCores]) -> Resources:
    """Return what is not assigned."""
    assignments = list(taken)
    return Resources(
        cores=round(len(machine.cores) - sum(assignment.share for assignment in assignments), 3),
        memory_bytes=machine.memory_bytes - sum(assignment.memory_bytes for assignment in assignments),
        gpus=len(machine.gpus) - sum(len(assignment.gpus) for assignment in assignments),
    )


def assign(
    machine: LocalMachine,
    taken: Iterable[AssignedCores],
    need: Resources,
    indices: Sequence[int],
    *,
    gang: bool,
) -> CoreAssignment:
    """Assign resources to as many members as fit; of a gang, all or none.

    Members that request no cores take none from others. The least shared cores are assigned first, adjacent
    ones together; a member never gets the same core twice.
    """
    assignments, assigned = list(taken), dict[int, AssignedCores]()
    for index in indices:
        missing = _missing(free_of(machine, assignments), need, machine)
        if missing:
            still = len(indices) - len(assigned)
            reason = f"no capacity for {still} of {len(indices)} members here: {missing}"
            return CoreAssignment({} if gang else assigned, reason)
        assigned[index] = _assignment(machine, assignments, need)
        assignments.append(assigned[index])
    return CoreAssignment(assigned)


def _missing(free: Resources, need: Resources, machine: LocalMachine) -> str:
    if need.cores is not None and need.cores > (free.cores or 0.0):
        return f"{need.cores:g} cores are requested, {free.cores:g} of {len(machine.cores)} are free"
    if need.memory_bytes is not None and need.memory_bytes > (free.memory_bytes or 0):
        requested, left = format_bytes(need.memory_bytes), format_bytes(free.memory_bytes or 0)
        return f"{requested} of memory are requested, {left} are free"
    if need.gpus > free.gpus:
        return f"{need.gpus} GPUs are requested, {free.gpus} of {len(machine.gpus)} are free"
    return ""


def _assignment(machine: LocalMachine, taken: Sequence[AssignedCores], need: Resources) -> AssignedCores:
    used = Counter(core for assignment in taken for core in assignment.cores)
    count = min(len(machine.cores), math.ceil(need.cores)) if need.cores is not None else 0
    order = {core: place for place, core in enumerate(machine.cores)}
    cores = sorted(sorted(machine.cores, key=lambda c: (used[c], order[c]))[:count], key=order.__getitem__)
    busy = {gpu for assignment in taken for gpu in assignment.gpus}
    gpus = tuple(gpu for gpu in machine.gpus if gpu not in busy)[: need.gpus]
    return AssignedCores(tuple(cores), need.cores or 0.0, need.memory_bytes or 0, gpus)
