"""The warden of one group on this machine: `python -m windlass.cluster.local.local_group_daemon ROOT TENANT NAME`.

    read what is wanted -> find room -> keep every member (cluster/process/process_supervisor.py) -> write
    down what is there

It belongs to nobody, and neither do its members: whoever launched them may end, and if the warden is killed
they go on, until the next one adopts them. It ends when nothing is left to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from dataclasses import replace
from pathlib import Path

from windlass.cluster.backend import ASKED, Group, Isolation, member_environment
from windlass.cluster.local.local_scheduler import find_room, this_machine
from windlass.cluster.local.local_state import (
    AssignedCores,
    DesiredGroup,
    GroupFolder,
    Written,
    folders,
    patient,
)
from windlass.cluster.process.cgroup_limits import ResourceLimits, build_fence, ceiling_of
from windlass.cluster.process.disk_usage import bytes_of, trim
from windlass.cluster.process.process_supervisor import MemberRecord, ProcessSupervisor
from windlass.spec.errors import InUse
from windlass.spec.protocol.entrypoint import KEPT, EntrypointParser, run_entrypoint
from windlass.spec.units import format_bytes

LOOK_EVERY_S = 0.1
SEEK_EVERY_S = 0.5
"""For room, while there is none."""
WEIGH_EVERY_S = 0.25
WEIGH_SHARE = 20.0
"""What a tenant has on disk is counted this often, and at most a twentieth of the time."""
LOOPBACK = "127.0.0.1"


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.cluster.local.local_group_daemon")
    parser.add_argument("root", type=Path)
    parser.add_argument("tenant")
    parser.add_argument("name")
    args = parser.parse_args(argv)
    folder = GroupFolder(args.root, args.tenant, args.name)
    with contextlib.suppress(InUse), patient(folder.warden_lock, f"group {args.tenant}/{args.name}"):
        GroupDaemon(folder).run()
    return 0


class GroupDaemon:
    """Keeps the members of a group until they are over or no longer wanted."""

    def __init__(self, folder: GroupFolder) -> None:
        self._folder = folder
        written = folder.written()
        self._written = written
        self._seats: dict[int, AssignedCores] = dict(written.seats)
        self._reason = ""
        self._sought_s = self._weigh_s = 0.0
        self._keepers: dict[int, ProcessSupervisor] = {}
        wanted = folder.wanted()
        if wanted is not None:
            for record in written.records:
                self._keepers[record.index] = self._keeper(wanted.group, record)

    def run(self) -> None:
        while not self._step(time.time()):
            time.sleep(LOOK_EVERY_S)

    def _step(self, now_s: float) -> bool:
        """Do what is to be done; return whether that was all, for ever."""
        wanted = self._folder.wanted()
        if wanted is None:
            return True
        self._staff(wanted, now_s)
        if wanted.group.walls is not None:
            self._watch(wanted.group.walls, wanted.group.tenant, now_s)
        for keeper in self._keepers.values():
            if keeper.record.index in self._seats or not keeper.ended:
                keeper.step(now_s)
        self._clear(wanted)
        self._write()
        return self._leave(wanted)

    def _staff(self, wanted: DesiredGroup, now_s: float) -> None:
        """Have a keeper for every member that is wanted, and let the others end."""
        count = 0 if wanted.stopping else wanted.group.count
        for index in range(count):
            if index not in self._keepers:
                record = MemberRecord(index, since_s=now_s, reason=ASKED)
                self._keepers[index] = self._keeper(wanted.group, record)
        for index, keeper in self._keepers.items():
            if index >= count:
                keeper.end(now_s)
        unseated = [i for i in range(count) if i not in self._seats and not self._keepers[i].record.over]
        if unseated and now_s - self._sought_s > SEEK_EVERY_S:
            self._seat(wanted.group, unseated)
            self._sought_s = 0.0 if len(self._seats) >= count else now_s

    def _watch(self, walls: Isolation, tenant: str, now_s: float) -> None:
        """Keep logs short, and end the members of a tenant that has more on disk than it may."""
        if walls.log_bytes is not None:
            for keeper in self._keepers.values():
                trim(keeper.log, walls.log_bytes)
        if walls.disk_bytes is None or now_s < self._weigh_s:
            return
        began_s, most = time.monotonic(), walls.disk_bytes
        used = bytes_of(Path(walls.home), walls.uid, most)
        self._weigh_s = now_s + max(WEIGH_EVERY_S, WEIGH_SHARE * (time.monotonic() - began_s))
        if used > most:
            reason = f"was ended: tenant '{tenant}' has more than its {format_bytes(most)} on disk"
            for keeper in self._keepers.values():
                keeper.expel(reason, now_s)

    def _seat(self, group: Group, indices: list[int]) -> None:
        """Ask for room; one group of this machine at a time, those of higher priority first."""
        with patient(self._folder.root / ".seats.lock", "the seats of this machine"):
            taken: list[AssignedCores] = list(self._seats.values())
            for other in folders(self._folder.root):
                if other != self._folder:
                    written, wanted = other.written(), other.wanted()
                    taken += written.seats.values()
                    if wanted is not None and written.reason and wanted.group.priority > group.priority:
                        self._reason = f"group {wanted.group.key} goes first, by its priority"
                        return
            room = find_room(this_machine(), taken, group.resources, indices, gang=group.gang)
            self._seats |= room.seats
            self._reason = room.reason
            self._write()

    def _clear(self, wanted: DesiredGroup) -> None:
        """Forget members that are gone, and give back the seats of those that need none."""
        count = 0 if wanted.stopping else wanted.group.count
        for index, keeper in list(self._keepers.items()):
            if (index >= count or keeper.ending) and keeper.ended:
                del self._keepers[index]
                self._seats.pop(index, None)
            elif keeper.record.over:
                self._seats.pop(index, None)

    def _leave(self, wanted: DesiredGroup) -> bool:
        """Whether nothing is left to do, also by what was asked for in this very moment."""
        if any(not keeper.record.over for keeper in self._keepers.values()):
            return False
        if not wanted.stopping and len(self._keepers) != wanted.group.count:
            return False
        with self._folder.changing():
            if self._folder.wanted() != wanted:
                return False
            if wanted.stopping:
                self._folder.remove()
        return True

    def _write(self) -> None:
        records = tuple(self._keepers[index].record for index in sorted(self._keepers))
        shown = tuple(self._explained(record) for record in records)
        written = Written(shown, self._seats, self._reason if len(self._seats) < len(records) else "")
        if written != self._written:
            self._written = written
            self._folder.write(written)

    def _explained(self, record: MemberRecord) -> MemberRecord:
        waits = record.state == "pending" and record.index not in self._seats and self._reason
        return replace(record, reason=self._reason) if waits else record

    def _keeper(self, group: Group, record: MemberRecord) -> ProcessSupervisor:
        def fence() -> ResourceLimits:
            place = hashlib.sha256(str(self._folder.root.resolve()).encode()).hexdigest()[:8]
            name = f"{place}.{group.tenant}.{group.name}.{record.index}"
            ceiling = ceiling_of(group, place)
            return build_fence(name, group.resources, self._seats[record.index].cores, ceiling=ceiling)

        return ProcessSupervisor(
            group,
            record,
            self._folder.log(record.index),
            environment=lambda: self._environment(group, record.index),
            parent=KEPT,
            fence=fence,
        )

    def _environment(self, group: Group, index: int) -> dict[str, str]:
        gpus = ",".join(map(str, self._seats[index].gpus))
        own = {"CUDA_VISIBLE_DEVICES": gpus} if group.resources.gpus else {}
        return {**member_environment(group, index, LOOPBACK), **own}


def node_name() -> str:
    return socket.gethostname()


if __name__ == "__main__":
    run_entrypoint(main)
