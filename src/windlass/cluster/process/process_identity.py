"""Tells a process from another one that got its number later."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PROC = Path("/proc")
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat behind the name, which may itself hold blanks and brackets (proc(5))."""


def birth_of(pid: int) -> str:
    """Return what no other process has: the boot and the tick in which it began; "" when it does not run.

    One that has ended and was not collected yet does not run.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[_STATE] in ("Z", "X"):
        return ""
    return f"{_boot()}/{fields[_START]}"


def runs(pid: int, birth: str) -> bool:
    """Whether this very process runs."""
    return pid > 0 and bool(birth) and birth_of(pid) == birth


def signal_one(pid: int, birth: str, number: signal.Signals) -> None:
    """Send a signal to this very process, if it runs: a descriptor holds on to it while we look."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if runs(pid, birth):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def kill_rest(pid: int, birth: str) -> None:
    """End what a process has started and left behind: the group whose number is its own.

    A group keeps its number while it has members. So the number is a stranger's only where a process of
    another birth has it.
    """
    now = birth_of(pid)
    if now in ("", birth):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()
