"""Distinguishes a process from a later one with the same pid."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PROC = Path("/proc")
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat after the name, which may contain blanks and brackets (proc(5))."""


def birth_of(pid: int) -> str:
    """Return what identifies a process: the boot id and its start tick; "" when it does not run.

    A zombie does not run.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[_STATE] in ("Z", "X"):
        return ""
    return f"{_boot()}/{fields[_START]}"


def runs(pid: int, birth: str) -> bool:
    """Whether exactly this process runs."""
    return pid > 0 and bool(birth) and birth_of(pid) == birth


def signal_one(pid: int, birth: str, number: signal.Signals) -> None:
    """Send a signal to exactly this process, if it runs: the pidfd refers to it while we check."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if runs(pid, birth):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def kill_rest(pid: int, birth: str) -> None:
    """Kill what a process has started and left behind: the process group with its pid as number.

    A process group keeps its number while it has members. So the number belongs to another group only if a
    process with another start time has that pid.
    """
    now = birth_of(pid)
    if now in ("", birth):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()
