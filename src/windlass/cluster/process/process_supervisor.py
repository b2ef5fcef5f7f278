"""Supervises one member of a group on this machine: starts it, watches it, restarts it, ends it.

    pending -> running -> pending (after a delay) -> running ... -> done | failed

Its state is a MemberRecord. Another supervisor that gets the record takes over, with the running process if
it is still alive.
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
from windlass.cluster.process.sandbox import SandboxedProcess, Unready, private, private_file, secrets, spawn
from windlass.cluster.process.sandbox import environment as isolated_environment
from windlass.spec.protocol.entrypoint import EXIT, PARENT


@dataclass(frozen=True)
class MemberRecord:
    """The state of a member, as it is stored for the next supervisor."""

    index: int
    state: State = "pending"
    exit_code: int | None = None
    restarts: int = 0
    since_s: float = 0.0
    reason: str = ""
    pid: int = 0
    birth: str = ""
    again_s: float = 0.0
    """When to start it, in seconds of Unix time."""

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
    """Supervises the process of one member. Times are Unix time, so that records can be handed over."""

    def __init__(
        self,
        group: Group,
        record: MemberRecord,
        log: Path,
        *,
        environment: Callable[[], Mapping[str, str]],
        parent: str,
        limits: Callable[[], ResourceLimits],
    ) -> None:
        """The process ends with `parent` (spec.protocol.entrypoint); the callables run at every start."""
        self.group, self.record, self.log = group, record, log
        self._environment, self._parent, self._build_limits = environment, parent, limits
        self._child: subprocess.Popen[bytes] | None = None
        self._limits = limits() if record.pid else None
        self._force_s: float | None = None
        self._expelled = ""

    @property
    def ended(self) -> bool:
        """Whether it has no process."""
        return self.record.pid == 0

    @property
    def ending(self) -> bool:
        return self._force_s is not None

    def step(self, now_s: float) -> None:
        """Check the process; start it when it is due."""
        record = self.record
        if record.pid:
            code, over = self._look()
            if over:
                self._reap(code, now_s)
            elif self._force_s is not None and now_s >= self._force_s:
                self._kill()
        elif record.state == "pending" and not self.ending and now_s >= record.again_s:
            self._start(now_s)

    def end(self, now_s: float) -> None:
        """Send SIGTERM; `step` kills the process after its grace. It is not restarted."""
        if self._force_s is None:
            self._force_s = now_s + self.group.grace_s
            if self.record.pid:
                signal_one(self.record.pid, self.record.birth, signal.SIGTERM)

    def expel(self, reason: str, now_s: float) -> None:
        """Kill the process at once and do not restart it: its tenant exceeded a quota."""
        if not self.record.over and not self._expelled:
            self._expelled = reason
            if self.record.pid:
                self._kill()
            else:
                self._settle(None, now_s, reason)

    def _start(self, now_s: float) -> None:
        """Start the process, and apply its limits before it does anything."""
        isolation = self.group.isolation
        unset = sorted(name for name in self.group.secrets if name not in os.environ)
        if unset and isolation is None:
            reason = f"needs the variable {unset[0]}, which is not set on this machine"
            self.record = replace(self.record, state="failed", since_s=now_s, reason=reason)
            return
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if isolation is None else 0o711)
        self._limits = self._build_limits()
        try:
            sandboxed = None if isolation is None else self._spawn_isolated(isolation)
            self._child = self._spawn() if sandboxed is None else sandboxed.process
        except Unready as error:
            self._expelled = error.message
            self._settle(None, now_s, error.message)
            return
        except OSError as error:  # out of memory or processes
            self._settle(None, now_s, f"could not be started: {error.strerror}")
            return
        pid = self._child.pid
        self._limits.apply_to(pid)
        if sandboxed is not None:
            sandboxed.release()
        self.record = replace(
            self.record, state="running", pid=pid, birth=birth_of(pid), since_s=now_s, reason=""
        )

    def _spawn_isolated(self, isolation: Isolation) -> SandboxedProcess:
        group, own = self.group, {PARENT: self._parent, EXIT: str(self._exit_file), "PYTHONUNBUFFERED": "1"}
        environment = {
            **isolated_environment(group, os.environ),
            **self._environment(),
            **secrets(group),
            **own,
        }
        private_file(self._exit_file, isolation)
        with open(self.log, "ab", opener=private) as log:
            command = [isolation.python or sys.executable, "-m", group.module, *group.args]
            memory = None if self._limits is None or self._limits.groups else group.resources.memory_bytes
            return spawn(isolation, command, environment, log, data_bytes=memory)

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
        """Return the exit code, if known, and whether the process has ended.

        The kernel reports exit codes only of children; an adopted process has written its own to a file, or
        was killed.
        """
        record = self.record
        if self._child is None:
            return (None, False) if runs(record.pid, record.birth) else (self._left_code(), True)
        if os.waitid(os.P_PID, record.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None, False
        kill_rest(record.pid, record.birth)  # before its pid can be reused
        return self._child.wait(), True

    def _left_code(self) -> int | None:
        try:
            return int(self._exit_file.read_text())
        except (OSError, ValueError):
            return None

    def _reap(self, code: int | None, now_s: float) -> None:
        """End what the process left behind, and settle its record."""
        record = self.record
        if self._child is None:
            kill_rest(record.pid, record.birth)
        self._settle(code, now_s, self._limits.overrun if self._limits is not None else "")

    def _settle(self, code: int | None, now_s: float, cause: str) -> None:
        """Decide the next state of a member whose process is gone."""
        if self._limits is not None:
            self._limits.release()
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
        self._child = self._limits = None

    def _kill(self) -> None:
        record = self.record
        if runs(record.pid, record.birth):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(record.pid, signal.SIGKILL)

    @property
    def _exit_file(self) -> Path:
        return self.log.with_suffix(".exit")
