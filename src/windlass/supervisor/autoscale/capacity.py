"""How many replicas there is room for: by this machine's cores and memory, or by a cluster's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from windlass.cluster.launch.cores import own_cores

KEPT_FREE = 0.1
"""The part of the memory that no replica is started into: the system's, and what others take meanwhile."""


@dataclass(frozen=True)
class ReplicaNeeds:
    """What one replica takes."""

    cores: int
    memory_bytes: int


class ReplicaHost(Protocol):
    """Where replicas run, as far as autoscaling must know it."""

    def room(self, need: ReplicaNeeds, running: int) -> int:
        """Return how many replicas of this need can run in all, the `running` included."""


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
    """Return how many replicas fit in all: one for each share of cores, as many more as free memory holds."""
    by_cores = cores // need.cores
    by_memory = running + max(0, free_bytes) // max(1, need.memory_bytes)
    return max(running and 1, min(by_cores, by_memory))


def need_of(
    cores: int, memory_bytes: int | None, processes: Sequence[int], models: Sequence[Path]
) -> ReplicaNeeds:
    """Return what a replica takes: as given, else as the largest that runs, else as its files promise."""
    if memory_bytes is None:
        memory_bytes = max((_resident_bytes(process) for process in processes), default=0)
    return ReplicaNeeds(cores, memory_bytes or _promised_bytes(models))


def _resident_bytes(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def _promised_bytes(models: Sequence[Path]) -> int:
    """Weights are kept as they are stored; keys and values are granted as much again."""
    return 2 * sum(path.stat().st_size for model in models for path in model.glob("*.safetensors"))
