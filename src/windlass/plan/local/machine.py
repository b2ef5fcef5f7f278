"""Cores, memory and speed of this machine, measured in under a second without torch.

The float32 matrix product of numpy is a fair stand-in for the trainer's: both reach the same few
percent of a CPU's arithmetic limit at these sizes.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass

import psutil

PROBE_WIDTH = 1024
PROBE_TRIES = 5
SORTED = 1 << 20
SORT_S = 0.057
"""What that many numbers of 64 bits take to sort on the machine on which counting was measured."""


@dataclass(frozen=True)
class MachineFacts:
    """Cores, memory and arithmetic speed of one machine."""

    cores: int
    memory_bytes: int
    peak_flops: float
    has_compiler: bool


def measure_machine() -> MachineFacts:
    """Measure this machine with all the cores that this process may use."""
    return MachineFacts(
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().available,
        peak_flops=_peak_flops(),
        has_compiler=any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")),
    )


def measure_sorting() -> float:
    """Return the seconds to sort SORTED numbers on one core, in time that this process had for it."""
    import numpy as np

    numbers = np.random.default_rng(0).integers(0, 1 << 62, SORTED, dtype=np.uint64)
    best = float("inf")
    for _ in range(PROBE_TRIES):
        begin = time.process_time()
        np.sort(numbers)
        best = min(best, time.process_time() - begin)
    return best


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _peak_flops() -> float:
    """The best of a few tries: noise only ever slows a product down."""
    import numpy as np  # takes a fifth of a second, which callers that need only the cores can skip

    rng = np.random.default_rng(0)
    a = rng.standard_normal((PROBE_WIDTH, PROBE_WIDTH), dtype=np.float32)
    best = float("inf")
    for _ in range(PROBE_TRIES):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return 2.0 * PROBE_WIDTH**3 / best
