"""The actor of one member: starts its process on the node that Ray has chosen, and supervises it.

It runs in one bundle of a placement group. When its node dies, Ray restarts it on another node, where it
starts a new process.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import ray

from windlass.cluster.backend import Group, Member, group_from, member_environment
from windlass.cluster.process.cgroup_limits import ResourceLimits, build_limits, tenant_limit_of
from windlass.cluster.process.process_identity import runs
from windlass.cluster.process.process_supervisor import MemberRecord, ProcessSupervisor
from windlass.spec.protocol.rank import THREAD_COUNTS

LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class MemberReport:
    """What a member actor reports to the controller."""

    member: Member
    ended: bool
    """Whether no process is left, and none will be started."""


class MemberActor:
    """Supervises one member on this node."""

    def __init__(self, written: bytes, index: int) -> None:
        """Kill the process that an earlier actor may have left on this node, then start."""
        for name in THREAD_COUNTS:  # Ray sets them for its own workers
            os.environ.pop(name, None)
        self._group, self._index = group_from(written), index
        self._host = str(ray.util.get_node_ip_address())
        self._node = str(ray.get_runtime_context().get_node_id())[
            :12
        ]  # an address may be in several clusters
        folder = Path(tempfile.gettempdir()) / f"windlass-{os.getuid()}" / "ray" / self._group.tenant
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._note = folder / f"{self._group.name}-{index}-{self._host}.json"
        self._end_left_behind()
        self._supervisor = ProcessSupervisor(
            self._group,
            MemberRecord(index, since_s=time.time()),
            self._note.with_suffix(".log"),
            environment=self._environment,
            parent=str(os.getpid()),
            limits=self._limits,
        )
        self._lock = threading.Lock()
        # The kernel ends a process with the thread that started it (spec.protocol.entrypoint): so one thread
        # does everything.
        threading.Thread(target=self._run, name="member", daemon=True).start()

    def look(self) -> MemberReport:
        with self._lock:
            record, ending = self._supervisor.record, self._supervisor.ending
        logs = f"{self._host}:{self._supervisor.log}"
        return MemberReport(
            record.member(self._host, logs), ended=record.pid == 0 and (ending or record.over)
        )

    def end(self) -> None:
        with self._lock:
            self._supervisor.end(time.time())

    def _run(self) -> None:
        before = None
        while True:
            with self._lock:
                self._supervisor.step(time.time())
                record = self._supervisor.record
            if record != before:
                before = record
                with contextlib.suppress(OSError):  # without it the next actor cannot kill a leftover
                    self._note.write_bytes(msgspec.json.encode(record))
            time.sleep(LOOK_EVERY_S)

    def _end_left_behind(self) -> None:
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, ProcessLookupError):
            left = msgspec.json.decode(self._note.read_bytes(), type=MemberRecord)
            if runs(left.pid, left.birth):
                os.killpg(left.pid, signal.SIGKILL)

    def _environment(self) -> Mapping[str, str]:
        cores = self._group.resources.cores
        threads = dict.fromkeys(THREAD_COUNTS, str(math.ceil(cores))) if cores is not None else {}
        return {**threads, **member_environment(self._group, self._index, self._host)}

    def _limits(self) -> ResourceLimits:
        group: Group = self._group
        place = f"ray.{self._node}"
        name = f"{place}.{group.tenant}.{group.name}.{self._index}"
        return build_limits(name, group.resources, tenant_limit=tenant_limit_of(group, place))
