"""This machine as a cluster: groups of processes that outlive their launcher.

The desired state is written into a directory (`local_state`); a daemon for each group (`local_group_daemon`)
brings it about. All objects for the same directory are the same cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from windlass.cluster.backend import (
    REQUESTED,
    ClusterState,
    Group,
    GroupStatus,
    Member,
    Node,
    Resources,
    check,
    refuse_other,
)
from windlass.cluster.local.local_group_daemon import LOOPBACK, node_name
from windlass.cluster.local.local_scheduler import free_of, this_machine
from windlass.cluster.local.local_state import DesiredGroup, GroupFolder, folders
from windlass.cluster.process.process_identity import runs
from windlass.cluster.process.process_supervisor import MemberRecord
from windlass.spec.errors import InUse, NotFound, ProcessFailed
from windlass.spec.processes import LOCAL_GROUP
from windlass.spec.protocol.entrypoint import KEPT, PARENT

BEGIN_S = 20.0
"""For a group daemon to start."""


class LocalBackend:
    """The groups below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def launch(self, group: Group) -> None:
        folder = self._folder(check(group).key)
        with folder.changing():
            wanted = folder.wanted()
            if wanted is not None:
                refuse_other(wanted.group, group)
                if wanted.stopping:
                    raise InUse(f"group {group.key} is being stopped", hint="wait until it is gone")
            if group.isolation is not None:
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.path.parent.chmod(0o700)  # other tenants may not read it
            if wanted is None or wanted.group != group:
                folder.want(DesiredGroup(group))
            self._ensure_daemon(folder)

    def observe(self, key: str) -> GroupStatus | None:
        folder = self._folder(key)
        wanted = folder.wanted()
        if wanted is None:
            return None
        written, has_daemon = folder.written(), folder.has_daemon()
        found = {r.index: _observed(r, folder, has_daemon=has_daemon) for r in written.records}
        count = 0 if wanted.stopping else wanted.group.count
        for index in range(count):
            found.setdefault(index, Member(index, "pending", reason=REQUESTED))
        return GroupStatus(wanted.group, tuple(found[i] for i in sorted(found)), wanted.stopping)

    def stop(self, key: str) -> None:
        folder = self._folder(key)
        if folder.wanted() is None:
            return
        with folder.changing():
            wanted = folder.wanted()
            if wanted is not None:
                folder.want(replace(wanted, stopping=True))
                self._ensure_daemon(folder)

    def scale(self, key: str, count: int) -> None:
        folder = self._folder(key)
        with folder.changing():
            wanted = folder.wanted()
            if wanted is None:
                raise NotFound(f"no group {key} on this machine")
            if wanted.stopping:
                raise InUse(f"group {key} is being stopped", hint="wait until it is gone")
            folder.want(DesiredGroup(check(replace(wanted.group, count=count))))
            self._ensure_daemon(folder)

    def survey(self, tenant: str | None = None) -> ClusterState:
        machine, every = this_machine(), folders(self._root)
        taken = [assignment for folder in every for assignment in folder.written().assignments.values()]
        total = Resources(float(len(machine.cores)), machine.memory_bytes, len(machine.gpus))
        node = Node(node_name(), True, LOOPBACK, total, free_of(machine, taken))
        found = [self.observe(f"{f.tenant}/{f.name}") for f in every if tenant in (None, f.tenant)]
        return ClusterState((node,), tuple(status for status in found if status is not None))

    def _folder(self, key: str) -> GroupFolder:
        tenant, _, name = key.rpartition("/")
        return GroupFolder(self._root, tenant or "default", name)

    def _ensure_daemon(self, folder: GroupFolder) -> None:
        """Start a daemon for the group if it has none, unless nothing is left to do."""
        wanted, written = folder.wanted(), folder.written()
        assert wanted is not None
        over = len(written.records) == wanted.group.count and all(r.over for r in written.records)
        if folder.has_daemon() or (over and not wanted.stopping and written.records):
            return
        log = self._root / "logs" / folder.tenant / f"{folder.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", LOCAL_GROUP, str(self._root), folder.tenant, folder.name]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, PARENT: KEPT},
            )
        until = time.monotonic() + BEGIN_S
        while not folder.has_daemon() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if process.poll() not in (None, 0):
            raise ProcessFailed(f"the daemon of group {folder.tenant}/{folder.name} did not start; see {log}")


def _observed(record: MemberRecord, folder: GroupFolder, *, has_daemon: bool) -> Member:
    """Return a member as it is: what a daemon that is gone has written may be outdated."""
    member = record.member(node_name(), str(folder.log(record.index)))
    if has_daemon or not record.pid or runs(record.pid, record.birth):
        return member
    return replace(member, state="lost", reason="ended while its group had no daemon; launch it again")
