"""The daemon of one group on this machine.

    python -m windlass.cluster.local.local_group_daemon ROOT TENANT NAME

    read the desired group -> assign cores and GPUs -> supervise every member (`process_supervisor`) -> write
    their records

The daemon and the members are independent of the launcher. If the daemon is killed, the members keep running
until the next daemon adopts them. It ends when nothing is left to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from dataclasses import replace
from pathlib import Path

from windlass.cluster.backend import REQUESTED, Group, Isolation, member_environment
from windlass.cluster.local.local_scheduler import assign, this_machine
from windlass.cluster.local.local_state import (
    AssignedCores,
    DesiredGroup,
    GroupFolder,
    Written,
    folders,
    patient,
)
from windlass.cluster.process.cgroup_limits import ResourceLimits, build_limits, tenant_limit_of
from windlass.cluster.process.disk_usage import bytes_of, trim
from windlass.cluster.process.process_supervisor import MemberRecord, ProcessSupervisor
from windlass.spec.errors import InUse
from windlass.spec.protocol.entrypoint import KEPT, EntrypointParser, run_entrypoint
from windlass.spec.units import format_bytes

LOOK_EVERY_S = 0.1
SEEK_EVERY_S = 0.5
"""Between searches for free cores, while there are none."""
MEASURE_EVERY_S = 0.25
MEASURE_SHARE = 20.0
"""Disk usage of a tenant is measured this often, and for at most a twentieth of the time."""
LOOPBACK = "127.0.0.1"


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.cluster.local.local_group_daemon")
    parser.add_argument("root", type=Path)
    parser.add_argument("tenant")
    parser.add_argument("name")
    args = parser.parse_args(argv)
    folder = GroupFolder(args.root, args.tenant, args.name)
    with contextlib.suppress(InUse), patient(folder.daemon_lock, f"group {args.tenant}/{args.name}"):
        GroupDaemon(folder).run()
    return 0


class GroupDaemon:
    """Supervises the members of a group until they are over or no longer wanted."""

    def __init__(self, folder: GroupFolder) -> None:
        self._folder = folder
        written = folder.written()
        self._written = written
        self._assignments: dict[int, AssignedCores] = dict(written.assignments)
        self._reason = ""
        self._sought_s = self._measure_s = 0.0
        self._supervisors: dict[int, ProcessSupervisor] = {}
        wanted = folder.wanted()
        if wanted is not None:
            for record in written.records:
                self._supervisors[record.index] = self._supervisor(wanted.group, record)

    def run(self) -> None:
        while not self._step(time.time()):
            time.sleep(LOOK_EVERY_S)

    def _step(self, now_s: float) -> bool:
        """Run one step; return whether the daemon may end."""
        wanted = self._folder.wanted()
        if wanted is None:
            return True
        self._supervise(wanted, now_s)
        if wanted.group.isolation is not None:
            self._watch(wanted.group.isolation, wanted.group.tenant, now_s)
        for supervisor in self._supervisors.values():
            if supervisor.record.index in self._assignments or not supervisor.ended:
                supervisor.step(now_s)
        self._clear(wanted)
        self._write()
        return self._leave(wanted)

    def _supervise(self, wanted: DesiredGroup, now_s: float) -> None:
        """Have a supervisor for every wanted member, and end the others."""
        count = 0 if wanted.stopping else wanted.group.count
        for index in range(count):
            if index not in self._supervisors:
                record = MemberRecord(index, since_s=now_s, reason=REQUESTED)
                self._supervisors[index] = self._supervisor(wanted.group, record)
        for index, supervisor in self._supervisors.items():
            if index >= count:
                supervisor.end(now_s)
        unassigned = [
            i for i in range(count) if i not in self._assignments and not self._supervisors[i].record.over
        ]
        if unassigned and now_s - self._sought_s > SEEK_EVERY_S:
            self._assign(wanted.group, unassigned)
            self._sought_s = 0.0 if len(self._assignments) >= count else now_s

    def _watch(self, isolation: Isolation, tenant: str, now_s: float) -> None:
        """Trim the logs, and end the members of a tenant that exceeds its disk quota."""
        if isolation.log_bytes is not None:
            for supervisor in self._supervisors.values():
                trim(supervisor.log, isolation.log_bytes)
        if isolation.disk_bytes is None or now_s < self._measure_s:
            return
        began_s, limit = time.monotonic(), isolation.disk_bytes
        used = bytes_of(Path(isolation.home), isolation.uid, limit)
        self._measure_s = now_s + max(MEASURE_EVERY_S, MEASURE_SHARE * (time.monotonic() - began_s))
        if used > limit:
            reason = f"was ended: tenant '{tenant}' has more than its {format_bytes(limit)} on disk"
            for supervisor in self._supervisors.values():
                supervisor.expel(reason, now_s)

    def _assign(self, group: Group, indices: list[int]) -> None:
        """Assign cores and GPUs; one group of this machine at a time, higher priorities first."""
        with patient(self._folder.root / ".assignments.lock", "the assignments of this machine"):
            taken: list[AssignedCores] = list(self._assignments.values())
            for other in folders(self._folder.root):
                if other != self._folder:
                    written, wanted = other.written(), other.wanted()
                    taken += written.assignments.values()
                    if wanted is not None and written.reason and wanted.group.priority > group.priority:
                        self._reason = f"group {wanted.group.key} has a higher priority and goes first"
                        return
            found = assign(this_machine(), taken, group.resources, indices, gang=group.gang)
            self._assignments |= found.assignments
            self._reason = found.reason
            self._write()

    def _clear(self, wanted: DesiredGroup) -> None:
        """Forget members that are gone, and release the assignments of those that are over."""
        count = 0 if wanted.stopping else wanted.group.count
        for index, supervisor in list(self._supervisors.items()):
            if (index >= count or supervisor.ending) and supervisor.ended:
                del self._supervisors[index]
                self._assignments.pop(index, None)
            elif supervisor.record.over:
                self._assignments.pop(index, None)

    def _leave(self, wanted: DesiredGroup) -> bool:
        """Whether nothing is left to do, also for a request that has just arrived."""
        if any(not supervisor.record.over for supervisor in self._supervisors.values()):
            return False
        if not wanted.stopping and len(self._supervisors) != wanted.group.count:
            return False
        with self._folder.changing():
            if self._folder.wanted() != wanted:
                return False
            if wanted.stopping:
                self._folder.remove()
        return True

    def _write(self) -> None:
        records = tuple(self._supervisors[index].record for index in sorted(self._supervisors))
        shown = tuple(self._explained(record) for record in records)
        written = Written(
            shown, self._assignments, self._reason if len(self._assignments) < len(records) else ""
        )
        if written != self._written:
            self._written = written
            self._folder.write(written)

    def _explained(self, record: MemberRecord) -> MemberRecord:
        waits = record.state == "pending" and record.index not in self._assignments and self._reason
        return replace(record, reason=self._reason) if waits else record

    def _supervisor(self, group: Group, record: MemberRecord) -> ProcessSupervisor:
        def limits() -> ResourceLimits:
            place = hashlib.sha256(str(self._folder.root.resolve()).encode()).hexdigest()[:8]
            name = f"{place}.{group.tenant}.{group.name}.{record.index}"
            total = tenant_limit_of(group, place)
            cores = self._assignments[record.index].cores
            return build_limits(name, group.resources, cores, tenant_limit=total)

        return ProcessSupervisor(
            group,
            record,
            self._folder.log(record.index),
            environment=lambda: self._environment(group, record.index),
            parent=KEPT,
            limits=limits,
        )

    def _environment(self, group: Group, index: int) -> dict[str, str]:
        gpus = ",".join(map(str, self._assignments[index].gpus))
        own = {"CUDA_VISIBLE_DEVICES": gpus} if group.resources.gpus else {}
        return {**member_environment(group, index, LOOPBACK), **own}


def node_name() -> str:
    return socket.gethostname()


if __name__ == "__main__":
    run_entrypoint(main)
