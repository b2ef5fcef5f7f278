"""Keeps one member of a group running on this machine: starts it, watches it, starts it again, ends it.

    pending -> running -> pending (after a pause) -> running ... -> done | failed

What it knows is a Record. Whoever has the record goes on where the last keeper left off, with the process
that runs if it still does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from windlass.cluster.backend import Group, Isolation, Member, State
from windlass.cluster.launch.local_process import ALLOCATOR
from windlass.cluster.process.cgroup_limits import ResourceLimits
from windlass.cluster.process.process_identity import birth_of, kill_rest, runs, signal_one
from windlass.cluster.process.restarts import Next, decide
from windlass.cluster.process.sandbox import Gated, Unready, private, private_file, secrets, spawn
from windlass.cluster.process.sandbox import environment as walled_environment
from windlass.spec.protocol.entrypoint import EXIT, PARENT


@dataclass(frozen=True)
class MemberRecord:
    """What is known of a member, as it is written down for the next keeper."""

    index: int
    state: State = "pending"
    exit_code: int | None = None
    restarts: int = 0
    since_s: float = 0.0
    reason: str = ""
    pid: int = 0
    birth: str = ""
    again_s: float = 0.0
    """When it is to be started, in seconds of Unix time."""

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")

    def member(self, node: str, logs: str) -> Member:
        return Member(
            self.index,
            self.state,
            self.exit_code,
            self.restarts,
            node if self.state != "pending" else "",
            self.since_s,
            self.reason,
            logs,
        )


class ProcessSupervisor:
    """Keeps the process of one member. Time is Unix time, so that a record means the same to the next."""

    def __init__(
        self,
        group: Group,
        record: MemberRecord,
        log: Path,
        *,
        environment: Callable[[], Mapping[str, str]],
        parent: str,
        fence: Callable[[], ResourceLimits],
    ) -> None:
        """`parent` is whom the process ends with (spec.protocol.entrypoint); the others are asked at every start."""
        self.group, self.record, self.log = group, record, log
        self._environment, self._parent, self._build = environment, parent, fence
        self._child: subprocess.Popen[bytes] | None = None
        self._fence = fence() if record.pid else None
        self._force_s: float | None = None
        self._expelled = ""

    @property
    def ended(self) -> bool:
        """Whether no process is left of it."""
        return self.record.pid == 0

    @property
    def ending(self) -> bool:
        return self._force_s is not None

    def step(self, now_s: float) -> None:
        """Look at the process; start it when its time has come."""
        record = self.record
        if record.pid:
            code, over = self._look()
            if over:
                self._bury(code, now_s)
            elif self._force_s is not None and now_s >= self._force_s:
                self._kill()
        elif record.state == "pending" and not self.ending and now_s >= record.again_s:
            self._start(now_s)

    def end(self, now_s: float) -> None:
        """Ask the process to end; `step` sees to it that it does. No other one is started."""
        if self._force_s is None:
            self._force_s = now_s + self.group.grace_s
            if self.record.pid:
                signal_one(self.record.pid, self.record.birth, signal.SIGTERM)

    def expel(self, reason: str, now_s: float) -> None:
        """End the process at once and start no other: it took what is not its own."""
        if not self.record.over and not self._expelled:
            self._expelled = reason
            if self.record.pid:
                self._kill()
            else:
                self._settle(None, now_s, reason)

    def _start(self, now_s: float) -> None:
        """Start the process, and hold it to its limits before it has done anything."""
        walls = self.group.walls
        unset = sorted(name for name in self.group.secrets if name not in os.environ)
        if unset and walls is None:
            reason = f"needs the variable {unset[0]}, which is not set on this machine"
            self.record = replace(self.record, state="failed", since_s=now_s, reason=reason)
            return
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if walls is None else 0o711)
        self._fence = self._build()
        try:
            gated = None if walls is None else self._spawn_walled(walls)
            self._child = self._spawn() if gated is None else gated.process
        except Unready as error:
            self._expelled = error.message
            self._settle(None, now_s, error.message)
            return
        except OSError as error:  # no memory, no processes left
            self._settle(None, now_s, f"could not be started: {error.strerror}")
            return
        pid = self._child.pid
        self._fence.take_in(pid)
        if gated is not None:
            gated.open()
        self.record = replace(
            self.record, state="running", pid=pid, birth=birth_of(pid), since_s=now_s, reason=""
        )

    def _spawn_walled(self, walls: Isolation) -> Gated:
        group, own = self.group, {PARENT: self._parent, EXIT: str(self._exit_file), "PYTHONUNBUFFERED": "1"}
        environment = {
            **walled_environment(group, os.environ),
            **self._environment(),
            **secrets(group),
            **own,
        }
        private_file(self._exit_file, walls)
        with open(self.log, "ab", opener=private) as log:
            command = [walls.python or sys.executable, "-m", group.module, *group.args]
            memory = None if self._fence is None or self._fence.groups else group.resources.memory_bytes
            return spawn(walls, command, environment, log, data_bytes=memory)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._exit_file.unlink(missing_ok=True)
        own = {PARENT: self._parent, EXIT: str(self._exit_file), "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.group.module, *self.group.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"GLIBC_TUNABLES": ALLOCATOR, **os.environ, **self._environment(), **own},
            )

    def _look(self) -> tuple[int | None, bool]:
        """Return the exit code, if it can be known, and whether the process has ended.

        Only of a child the system tells how it ended; one that was adopted has left word itself, or was
        killed.
        """
        record = self.record
        if self._child is None:
            return (None, False) if runs(record.pid, record.birth) else (self._left_code(), True)
        if os.waitid(os.P_PID, record.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None, False
        kill_rest(record.pid, record.birth)  # before its number is free to be another's
        return self._child.wait(), True

    def _left_code(self) -> int | None:
        try:
            return int(self._exit_file.read_text())
        except (OSError, ValueError):
            return None

    def _bury(self, code: int | None, now_s: float) -> None:
        record = self.record
        if self._child is None:
            kill_rest(record.pid, record.birth)
        self._settle(code, now_s, self._fence.overrun if self._fence is not None else "")

    def _settle(self, code: int | None, now_s: float, cause: str) -> None:
        """Decide what becomes of a member that has no process."""
        if self._fence is not None:
            self._fence.release()
        record, ran_s = self.record, now_s - self.record.since_s
        after = decide(self.group.restart, code=code, restarts=record.restarts, ran_s=ran_s, cause=cause)
        if self._expelled:
            after = Next("failed", reason=self._expelled)
        self.record = replace(
            record,
            state=after.state,
            exit_code=code,
            restarts=record.restarts + (after.state == "pending"),
            since_s=now_s,
            reason=after.reason,
            pid=0,
            birth="",
            again_s=now_s + after.wait_s,
        )
        self._child = self._fence = None

    def _kill(self) -> None:
        record = self.record
        if runs(record.pid, record.birth):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(record.pid, signal.SIGKILL)

    @property
    def _exit_file(self) -> Path:
        return self.log.with_suffix(".exit")
