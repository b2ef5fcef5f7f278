"""Holds a process to its cores and its memory.

Control groups do it where this process may make one (version 2, or 1 where that is what is mounted): they
count all that a process starts. Where it may not, each process gets a resource limit on its data, which its
children get of their own. The cores are an affinity in any case, so that libraries count the right number
of them.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.cluster.backend import Resources
from windlass.spec.units import format_bytes

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
FOLDER = "windlass"
PERIOD_US = 100_000
"""The time in which a group may compute for `cores` times as long; the kernel's own choice."""


@dataclass(frozen=True)
class Fence:
    """The limits of one member. `groups` are its control groups; without any, limits are per process."""

    resources: Resources
    cores: tuple[int, ...] = ()
    groups: tuple[Path, ...] = ()

    def take_in(self, pid: int) -> None:
        """Hold a process, which has only just begun, to the limits."""
        with contextlib.suppress(ProcessLookupError):
            if self.cores:
                os.sched_setaffinity(pid, self.cores)
            memory = self.resources.memory_bytes
            if not self._enclosed(pid) and memory is not None:
                resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))

    def _enclosed(self, pid: int) -> bool:
        """Put a process into the control groups; return whether they hold it."""
        try:
            for group in self.groups:
                (group / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            raise
        except OSError:
            return False  # we may make a group, and not move a process there
        return bool(self.groups)

    @property
    def overrun(self) -> str:
        """What a member did beyond its limits and died of, in words."""
        memory = self.resources.memory_bytes
        if memory is not None and any(_oom_kills(group) for group in self.groups):
            return f"was ended by the system: it used more than its {format_bytes(memory)} of memory"
        return ""

    def release(self) -> None:
        """Remove what was made for it; the processes in it have ended."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                group.rmdir()


def build_fence(
    name: str, resources: Resources, cores: Sequence[int] = (), *, root: Path = CGROUPS, own: Path = OWN
) -> Fence:
    """Make the limits of a member called `name`, by control groups if they can be made."""
    made: list[Path] = []
    try:
        for group, values in _settings(name, resources, root, own).items():
            group.mkdir(parents=True, exist_ok=True)
            made.append(group)
            for file, value in values.items():
                (group / file).write_text(value)
    except OSError:
        Fence(resources, (), tuple(made)).release()
        made = []
    return Fence(resources, tuple(cores), tuple(made))


def _settings(name: str, resources: Resources, root: Path, own: Path) -> dict[Path, dict[str, str]]:
    """Return the control groups to make and what to write into them; none when nothing is limited."""
    if (root / "cgroup.controllers").exists():
        return _settings_2(name, resources, root / _base_2(own))
    found: dict[Path, dict[str, str]] = {}
    places = _own_places(own)
    if resources.memory_bytes is not None:
        group = root / "memory" / places.get("memory", "") / FOLDER / name
        found[group] = {"memory.limit_in_bytes": str(resources.memory_bytes)}
    if resources.cores is not None:
        group = root / "cpu" / places.get("cpu", "") / FOLDER / name
        found[group] = {
            "cpu.cfs_period_us": str(PERIOD_US),
            "cpu.cfs_quota_us": str(round(resources.cores * PERIOD_US)),
        }
    return found


def _settings_2(name: str, resources: Resources, base: Path) -> dict[Path, dict[str, str]]:
    values: dict[str, str] = {}
    if resources.memory_bytes is not None:
        values |= {"memory.max": str(resources.memory_bytes), "memory.oom.group": "1"}
    if resources.cores is not None:
        values["cpu.max"] = f"{round(resources.cores * PERIOD_US)} {PERIOD_US}"
    if values:
        for parent in (base, base / FOLDER):  # refused where it is so already, or where it cannot be
            with contextlib.suppress(OSError):
                parent.mkdir(exist_ok=True)
                (parent / "cgroup.subtree_control").write_text("+cpu +memory")
    return {base / FOLDER / name: values} if values else {}


def _base_2(own: Path) -> str:
    """Beside this process's group: a group of version 2 that has processes cannot have limited children."""
    return str(Path(_own_places(own).get("", "")).parent).lstrip("./")


def _own_places(own: Path) -> Mapping[str, str]:
    """Return in which group this process is, by controller ("" for version 2), without the leading slash."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    told = [line.split(":", 2) for line in lines]
    return {name: path.lstrip("/") for _, controllers, path in told for name in controllers.split(",")}


def _oom_kills(group: Path) -> int:
    """Return how many processes the system ended for want of memory in a group."""
    for file in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (group / file).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
