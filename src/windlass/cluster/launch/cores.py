"""Divides the cores of a machine among the processes that compute on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def divide_cores(cores: Sequence[int], ranks: int, most: int | None = None) -> list[tuple[int, ...]]:
    """Return the cores of each rank: equally many, neighbours together, at most `most` each.

    Ranks wait for each other at every step, so a core more for one of them would help nobody: what is left
    over stays free for the system. With more ranks than cores, they take turns, one core each.
    """
    if ranks >= len(cores):
        return [(cores[rank % len(cores)],) for rank in range(ranks)]
    each = len(cores) // ranks
    taken = min(each, most or each)
    return [tuple(cores[rank * each : rank * each + taken]) for rank in range(ranks)]


def own_cores() -> list[int]:
    """Return the cores that this process may use; those that share a chip or a core stand together."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0), key=_seat)


def _seat(core: int) -> tuple[int, int, int]:
    """Say on which chip and in which physical core a core is, where the system tells."""
    return _fact(core, "physical_package_id"), _fact(core, "core_id"), core


def _fact(core: int, name: str) -> int:
    try:
        return int((TOPOLOGY / f"cpu{core}" / "topology" / name).read_text())
    except (OSError, ValueError):
        return 0
