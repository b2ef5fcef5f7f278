"""Limits the cores and the memory of a process.

By control groups, where this process may create them (version 2, or 1 if that is mounted): they include all
children of a process. Otherwise each process gets a resource limit on its data, which each child inherits
separately. Cores are also set as CPU affinity, so that libraries see the right number of them.

    windlass/NAME              a member
    windlass/TENANT/NAME       a member of a tenant with limits for all its members together
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
"""The scheduling period of the CPU quota; the kernel's default."""


SWEEPS = 200
SWEEP_S = 0.005
"""How often, and with what pause, the processes left in a control group are killed."""


@dataclass(frozen=True)
class TenantLimit:
    """The total limit of a tenant's members; `processes` counts threads too."""

    name: str
    resources: Resources
    processes: int | None = None


@dataclass(frozen=True)
class ResourceLimits:
    """The limits of one member. `groups` are its control groups; without any, limits are per process."""

    resources: Resources
    cores: tuple[int, ...] = ()
    groups: tuple[Path, ...] = ()
    tenant_limit: TenantLimit | None = None

    def apply_to(self, pid: int) -> None:
        """Apply the limits to a process that has just started."""
        with contextlib.suppress(ProcessLookupError):
            if self.cores:
                os.sched_setaffinity(pid, self.cores)
            memory = self.resources.memory_bytes
            if not self._enclosed(pid) and memory is not None:
                with contextlib.suppress(PermissionError):  # another user's: sandbox_exec has set it
                    resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))

    def _enclosed(self, pid: int) -> bool:
        """Move a process into the control groups; return whether that worked."""
        try:
            for group in self.groups:
                (group / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            raise
        except OSError:
            return False  # we may create a group, but not move a process there
        return bool(self.groups)

    @property
    def overrun(self) -> str:
        """Which limit a member exceeded and was killed for, as a sentence."""
        memory, whose = self.resources.memory_bytes, "its"
        if memory is None and self.tenant_limit is not None:
            memory, whose = self.tenant_limit.resources.memory_bytes, "its tenant's"
        if memory is not None and any(_counted(group, "oom_kill") for group in self.groups):
            return f"was killed by the kernel: it used more than {whose} {format_bytes(memory)} of memory"
        if any(_counted(group, "max", ("pids.events",)) for group in self.groups):
            assert self.tenant_limit is not None
            return (
                f"was refused more than the {self.tenant_limit.processes} processes that its tenant may have"
            )
        return ""

    def release(self) -> None:
        """Kill all processes in its control groups, in any session, and remove the groups."""
        for group in self.groups:
            with contextlib.suppress(OSError):
                (group / "pids.max").write_text("0")  # or it could fork while it is killed
        for group in self.groups:
            _sweep(group)
            _remove(group)
            if self.tenant_limit is not None:
                with contextlib.suppress(OSError):  # other members are still in it
                    group.parent.rmdir()


def tenant_limit_of(group: Group, place: str) -> TenantLimit | None:
    """Return the total limit of a group's tenant, the same for all its groups in one `place`."""
    isolation = group.isolation
    if isolation is None or (isolation.cores, isolation.memory_bytes, isolation.processes) == (
        None,
        None,
        None,
    ):
        return None
    total = Resources(isolation.cores, isolation.memory_bytes)
    return TenantLimit(f"{place}.{group.tenant}", total, isolation.processes)


def build_limits(
    name: str,
    resources: Resources,
    cores: Sequence[int] = (),
    *,
    tenant_limit: TenantLimit | None = None,
    root: Path = CGROUPS,
    own: Path = OWN,
) -> ResourceLimits:
    """Create the limits of a member called `name`, with control groups if possible."""
    for _ in range(3):  # another process may remove the tenant's group meanwhile
        made: list[Path] = []
        try:
            for group, values in _settings(name, resources, tenant_limit, root, own).items():
                group.mkdir(parents=True, exist_ok=True)
                if group.name == name:
                    made.append(group)
                for file, value in values.items():
                    (group / file).write_text(value)
        except OSError as error:
            ResourceLimits(resources, (), tuple(made)).release()
            made = []
            if tenant_limit is not None and isinstance(error, FileNotFoundError):
                continue
        break
    return ResourceLimits(resources, tuple(cores), tuple(made), tenant_limit)


def _settings(
    name: str, resources: Resources, tenant_limit: TenantLimit | None, root: Path, own: Path
) -> dict[Path, dict[str, str]]:
    """Return the control groups to create, outer ones first, and what to write into them."""
    if (root / "cgroup.controllers").exists():
        return _settings_2(name, resources, tenant_limit, root / _base_2(own))
    found: dict[Path, dict[str, str]] = {}
    places = _own_places(own)
    inner = _values_1(resources, tenant_limit.processes if tenant_limit else None)
    outer = _values_1(tenant_limit.resources, tenant_limit.processes) if tenant_limit else {}
    for controller in sorted(inner.keys() | outer.keys()):
        group = root / controller / places.get(controller, "") / FOLDER
        if tenant_limit is not None:
            group /= tenant_limit.name
            found[group] = outer.get(controller, {})
        found[group / name] = inner.get(controller, {})
    return found


def _values_1(resources: Resources, processes: int | None) -> dict[str, dict[str, str]]:
    """Return what to write, by controller; unlimited resources are omitted."""
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
    name: str, resources: Resources, tenant_limit: TenantLimit | None, base: Path
) -> dict[Path, dict[str, str]]:
    inner = _values_2(resources, tenant_limit.processes if tenant_limit else None)
    if inner and resources.memory_bytes is not None:
        inner["memory.oom.group"] = "1"
    outer = _values_2(tenant_limit.resources, tenant_limit.processes) if tenant_limit else {}
    if not inner and not outer:
        return {}
    parents = [base, base / FOLDER] + ([base / FOLDER / tenant_limit.name] if tenant_limit else [])
    for parent in parents:  # fails if it is already set, or not allowed
        with contextlib.suppress(OSError):
            parent.mkdir(exist_ok=True)
            controllers = "+cpu +memory +pids" if tenant_limit else "+cpu +memory"
            (parent / "cgroup.subtree_control").write_text(controllers)
    found = {parents[-1]: outer} if tenant_limit else {}
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
    """Return the parent of this process's group: in version 2 only groups without processes have limits."""
    return str(Path(_own_places(own).get("", "")).parent).lstrip("./")


def _own_places(own: Path) -> Mapping[str, str]:
    """Return this process's group, by controller ("" for version 2), without the leading slash."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split(":", 2) for line in lines]
    return {name: path.lstrip("/") for _, controllers, path in fields for name in controllers.split(",")}


def _counted(group: Path, event: str, files: Sequence[str] = ("memory.events", "memory.oom_control")) -> int:
    """Return an event counter of a group, e.g. how often the kernel killed a process for lack of memory."""
    for file in files:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (group / file).read_text().splitlines():
                if line.startswith(f"{event} "):
                    return int(line.split()[1])
    return 0


def _remove(group: Path) -> None:
    """Remove a group; killed processes may stay in it for a moment."""
    for _ in range(SWEEPS):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if not (group / "cgroup.procs").exists():
                return  # not a control group
            time.sleep(SWEEP_S)
        else:
            return


def _sweep(group: Path) -> None:
    """Kill the processes of a group until none is left."""
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
