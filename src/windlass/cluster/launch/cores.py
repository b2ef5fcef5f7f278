"""Divides the cores of a machine among the processes that compute on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def divide_cores(cores: Sequence[int], ranks: int, limit: int | None = None) -> list[tuple[int, ...]]:
    """Return the cores of each rank: the same number for each, adjacent, at most `limit`.

    Ranks wait for each other at every step, so an extra core for one of them would not help: the remainder
    stays free for the system. With more ranks than cores, ranks share cores, one core each.
    """
    if ranks >= len(cores):
        return [(cores[rank % len(cores)],) for rank in range(ranks)]
    each = len(cores) // ranks
    taken = min(each, limit or each)
    return [tuple(cores[rank * each : rank * each + taken]) for rank in range(ranks)]


def own_cores() -> list[int]:
    """Return the cores that this process may use; those of one chip or physical core are adjacent."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=_position)


def _position(core: int) -> tuple[int, int, int]:
    """Return the chip and physical core of a core, if the kernel reports them."""
    return _fact(core, "physical_package_id"), _fact(core, "core_id"), core


def _fact(core: int, name: str) -> int:
    try:
        return int((TOPOLOGY / f"cpu{core}" / "topology" / name).read_text())
    except (OSError, ValueError):
        return 0
