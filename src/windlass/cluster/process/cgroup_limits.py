"""Holds a process to its cores and its memory.

Control groups do it where this process may make one (version 2, or 1 where that is what is mounted): they
count all that a process starts. Where it may not, each process gets a resource limit on its data, which its
children get of their own. The cores are an affinity in any case, so that libraries count the right number
of them.

    windlass/NAME              a member
    windlass/CEILING/NAME      a member of a tenant that has a ceiling: the most of all its members together
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.cluster.backend import Group, Resources
from windlass.spec.units import format_bytes

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
FOLDER = "windlass"
PERIOD_US = 100_000
"""The time in which a group may compute for `cores` times as long; the kernel's own choice."""


SWEEPS = 200
SWEEP_S = 0.005
"""How often, and how long apart, what is left in a control group is killed before it is given up."""


@dataclass(frozen=True)
class TenantLimit:
    """The most that several members may have together; `processes` counts threads too."""

    name: str
    resources: Resources
    processes: int | None = None


@dataclass(frozen=True)
class ResourceLimits:
    """The limits of one member. `groups` are its control groups; without any, limits are per process."""

    resources: Resources
    cores: tuple[int, ...] = ()
    groups: tuple[Path, ...] = ()
    ceiling: TenantLimit | None = None

    def take_in(self, pid: int) -> None:
        """Hold a process, which has only just begun, to the limits."""
        with contextlib.suppress(ProcessLookupError):
            if self.cores:
                os.sched_setaffinity(pid, self.cores)
            memory = self.resources.memory_bytes
            if not self._enclosed(pid) and memory is not None:
                with contextlib.suppress(
                    PermissionError
                ):  # another user's: its gate has set it (sandbox_exec.py)
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
        memory, whose = self.resources.memory_bytes, "its"
        if memory is None and self.ceiling is not None:
            memory, whose = self.ceiling.resources.memory_bytes, "its tenant's"
        if memory is not None and any(_counted(group, "oom_kill") for group in self.groups):
            return f"was ended by the system: it used more than {whose} {format_bytes(memory)} of memory"
        if any(_counted(group, "max", ("pids.events",)) for group in self.groups):
            assert self.ceiling is not None
            return f"was refused more than the {self.ceiling.processes} processes that its tenant may have"
        return ""

    def release(self) -> None:
        """End what is still in its control groups, whatever session it fled to, and remove them."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                (group / "pids.max").write_text("0")  # or it would go on while it is killed
        for group in self.groups:
            _sweep(group)
            _remove(group)
            if self.ceiling is not None:
                with contextlib.suppress(OSError):  # other members are in it
                    group.parent.rmdir()


def ceiling_of(group: Group, place: str) -> TenantLimit | None:
    """Return the ceiling of a group's tenant, the same for all its groups in one `place`."""
    walls = group.walls
    if walls is None or (walls.cores, walls.memory_bytes, walls.processes) == (None, None, None):
        return None
    most = Resources(walls.cores, walls.memory_bytes)
    return TenantLimit(f"{place}.{group.tenant}", most, walls.processes)


def build_fence(
    name: str,
    resources: Resources,
    cores: Sequence[int] = (),
    *,
    ceiling: TenantLimit | None = None,
    root: Path = CGROUPS,
    own: Path = OWN,
) -> ResourceLimits:
    """Make the limits of a member called `name`, by control groups if they can be made."""
    for _ in range(3):  # the last other member of a ceiling may take it away between two lines here
        made: list[Path] = []
        try:
            for group, values in _settings(name, resources, ceiling, root, own).items():
                group.mkdir(parents=True, exist_ok=True)
                if group.name == name:
                    made.append(group)
                for file, value in values.items():
                    (group / file).write_text(value)
        except OSError as error:
            ResourceLimits(resources, (), tuple(made)).release()
            made = []
            if ceiling is not None and isinstance(error, FileNotFoundError):
                continue
        break
    return ResourceLimits(resources, tuple(cores), tuple(made), ceiling)


def _settings(
    name: str, resources: Resources, ceiling: TenantLimit | None, root: Path, own: Path
) -> dict[Path, dict[str, str]]:
    """Return the control groups to make, outer ones first, and what to write into them."""
    if (root / "cgroup.controllers").exists():
        return _settings_2(name, resources, ceiling, root / _base_2(own))
    found: dict[Path, dict[str, str]] = {}
    places = _own_places(own)
    inner = _values_1(resources, ceiling.processes if ceiling else None)
    outer = _values_1(ceiling.resources, ceiling.processes) if ceiling else {}
    for controller in sorted(inner.keys() | outer.keys()):
        group = root / controller / places.get(controller, "") / FOLDER
        if ceiling is not None:
            group /= ceiling.name
            found[group] = outer.get(controller, {})
        found[group / name] = inner.get(controller, {})
    return found


def _values_1(resources: Resources, processes: int | None) -> dict[str, dict[str, str]]:
    """Return what to write, by controller; what is not limited is not there."""
    values: dict[str, dict[str, str]] = {}
    if resources.memory_bytes is not None:
        values["memory"] = {"memory.limit_in_bytes": str(resources.memory_bytes)}
    if resources.cores is not None:
        quota = max(1000, round(resources.cores * PERIOD_US))
        values["cpu"] = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    if processes is not None:
        values["pids"] = {"pids.max": str(processes)}
    return values


def _settings_2(
    name: str, resources: Resources, ceiling: TenantLimit | None, base: Path
) -> dict[Path, dict[str, str]]:
    inner = _values_2(resources, ceiling.processes if ceiling else None)
    if inner and resources.memory_bytes is not None:
        inner["memory.oom.group"] = "1"
    outer = _values_2(ceiling.resources, ceiling.processes) if ceiling else {}
    if not inner and not outer:
        return {}
    parents = [base, base / FOLDER] + ([base / FOLDER / ceiling.name] if ceiling else [])
    for parent in parents:  # refused where it is so already, or where it cannot be
        with contextlib.suppress(OSError):
            parent.mkdir(exist_ok=True)
            controllers = "+cpu +memory +pids" if ceiling else "+cpu +memory"
            (parent / "cgroup.subtree_control").write_text(controllers)
    found = {parents[-1]: outer} if ceiling else {}
    return {**found, parents[-1] / name: inner}


def _values_2(resources: Resources, processes: int | None) -> dict[str, str]:
    values: dict[str, str] = {}
    if resources.memory_bytes is not None:
        values["memory.max"] = str(resources.memory_bytes)
    if resources.cores is not None:
        values["cpu.max"] = f"{max(1000, round(resources.cores * PERIOD_US))} {PERIOD_US}"
    if processes is not None:
        values["pids.max"] = str(processes)
    return values


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


def _counted(group: Path, event: str, files: Sequence[str] = ("memory.events", "memory.oom_control")) -> int:
    """Return how often the system did something in a group, such as to end a process for want of memory."""
    for file in files:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (group / file).read_text().splitlines():
                if line.startswith(f"{event} "):
                    return int(line.split()[1])
    return 0


def _remove(group: Path) -> None:
    """Remove a group; what was killed in it is there for a moment yet."""
    for _ in range(SWEEPS):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if not (group / "cgroup.procs").exists():
                return  # no control group at all
            time.sleep(SWEEP_S)
        else:
            return


def _sweep(group: Path) -> None:
    """Kill all that is in a group until nothing is."""
    for _ in range(SWEEPS):
        try:
            left = [int(line) for line in (group / "cgroup.procs").read_text().split()]
        except (OSError, ValueError):
            return
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(SWEEP_S)
