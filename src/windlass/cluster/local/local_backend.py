"""This machine as a cluster: groups of processes that outlive whoever launched them.

What is wanted is written into a directory (local_state.py); a warden for each group (local_group_daemon.py)
makes it so. Every object that is made for the same directory is the same cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from windlass.cluster.backend import (
    ASKED,
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
"""For a warden to begin."""


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
            if group.walls is not None:
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.path.parent.chmod(0o700)  # what is asked for by one tenant is nobody else's to read
            if wanted is None or wanted.group != group:
                folder.want(DesiredGroup(group))
            self._guard(folder)

    def observe(self, key: str) -> GroupStatus | None:
        folder = self._folder(key)
        wanted = folder.wanted()
        if wanted is None:
            return None
        written, guarded = folder.written(), folder.guarded()
        found = {r.index: _seen(r, folder, guarded=guarded) for r in written.records}
        count = 0 if wanted.stopping else wanted.group.count
        for index in range(count):
            found.setdefault(index, Member(index, "pending", reason=ASKED))
        return GroupStatus(wanted.group, tuple(found[i] for i in sorted(found)), wanted.stopping)

    def stop(self, key: str) -> None:
        folder = self._folder(key)
        if folder.wanted() is None:
            return
        with folder.changing():
            wanted = folder.wanted()
            if wanted is not None:
                folder.want(replace(wanted, stopping=True))
                self._guard(folder)

    def scale(self, key: str, count: int) -> None:
        folder = self._folder(key)
        with folder.changing():
            wanted = folder.wanted()
            if wanted is None:
                raise NotFound(f"no group {key} on this machine")
            if wanted.stopping:
                raise InUse(f"group {key} is being stopped", hint="wait until it is gone")
            folder.want(DesiredGroup(check(replace(wanted.group, count=count))))
            self._guard(folder)

    def survey(self, tenant: str | None = None) -> ClusterState:
        machine, every = this_machine(), folders(self._root)
        taken = [seat for folder in every for seat in folder.written().seats.values()]
        total = Resources(float(len(machine.cores)), machine.memory_bytes, len(machine.gpus))
        node = Node(node_name(), True, LOOPBACK, total, free_of(machine, taken))
        found = [self.observe(f"{f.tenant}/{f.name}") for f in every if tenant in (None, f.tenant)]
        return ClusterState((node,), tuple(standing for standing in found if standing is not None))

    def _folder(self, key: str) -> GroupFolder:
        tenant, _, name = key.rpartition("/")
        return GroupFolder(self._root, tenant or "default", name)

    def _guard(self, folder: GroupFolder) -> None:
        """See to it that the group has a warden, unless nothing is left to do."""
        wanted, written = folder.wanted(), folder.written()
        assert wanted is not None
        over = len(written.records) == wanted.group.count and all(r.over for r in written.records)
        if folder.guarded() or (over and not wanted.stopping and written.records):
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
        while not folder.guarded() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if process.poll() not in (None, 0):
            raise ProcessFailed(f"the warden of group {folder.tenant}/{folder.name} did not begin: {log}")


def _seen(record: MemberRecord, folder: GroupFolder, *, guarded: bool) -> Member:
    """Return a member as it is: what was written by a warden that is gone may be true no longer."""
    member = record.member(node_name(), str(folder.log(record.index)))
    if guarded or not record.pid or runs(record.pid, record.birth):
        return member
    return replace(member, state="lost", reason="ended while nobody watched; launch it again")
