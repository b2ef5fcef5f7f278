"""How many replicas fit: by this machine's cores and memory, or as a cluster reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from windlass.cluster.launch.cores import own_cores

KEPT_FREE = 0.1
"""Share of the memory that is kept free for the system and other processes."""


@dataclass(frozen=True)
class ReplicaNeeds:
    """The resources of one replica."""

    cores: int
    memory_bytes: int


class ReplicaHost(Protocol):
    """Where replicas run, as far as autoscaling needs to know."""

    def room(self, need: ReplicaNeeds, running: int) -> int:
        """Return how many such replicas can run in total, the `running` included."""


class ThisMachine:
    """Room on the machine that the supervisor runs on."""

    def room(self, need: ReplicaNeeds, running: int) -> int:
        memory = psutil.virtual_memory()
        return room_for(
            need,
            running,
            cores=len(own_cores()),
            free_bytes=int(memory.available - KEPT_FREE * memory.total),
        )


def room_for(need: ReplicaNeeds, running: int, *, cores: int, free_bytes: int) -> int:
    """Return how many replicas fit in total by cores, and by the free memory for further ones."""
    by_cores = cores // need.cores
    by_memory = running + max(0, free_bytes) // max(1, need.memory_bytes)
    return max(running and 1, min(by_cores, by_memory))


def need_of(
    cores: int, memory_bytes: int | None, processes: Sequence[int], models: Sequence[Path]
) -> ReplicaNeeds:
    """Return the needs of a replica: as set, else of the largest running one, else by its files."""
    if memory_bytes is None:
        memory_bytes = max((_resident_bytes(process) for process in processes), default=0)
    return ReplicaNeeds(cores, memory_bytes or _promised_bytes(models))


def _resident_bytes(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def _promised_bytes(models: Sequence[Path]) -> int:
    """Estimate the memory: weights as stored, and as much again for keys and values."""
    return 2 * sum(path.stat().st_size for model in models for path in model.glob("*.safetensors"))
