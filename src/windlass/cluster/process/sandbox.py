"""Starts a tenant's process so that it cannot reach another tenant's data.

    a clean environment -> its own user id, home and umask -> `sandbox_exec`, which waits until the limits are
    applied (`cgroup_limits`) -> the command

Of the machine's variables only those of PASSED are passed on: no credentials, no keys, no address of a
database. Its secrets are files that only root reads, SECRET/KEY below one directory, as Kubernetes mounts
them; their values are in the process and nowhere else. If the launcher is not root, all tenants have one user
id; docs/guides/tenants.md says what that means.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from windlass.cluster.backend import Group, Isolation
from windlass.cluster.process import sandbox_exec
from windlass.spec.errors import ProcessFailed

PASSED = re.compile(
    r"PATH|LANG|LC_\w+|TZ|PYTHONPATH|PYTHONDONTWRITEBYTECODE|VIRTUAL_ENV|LD_LIBRARY_PATH|CUDA_HOME"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE"
)
EXEC = Path(sandbox_exec.__file__)
MAX_SECRET_BYTES = 1 << 16
OPEN_FILES = 4096


class Unready(ProcessFailed):
    """Something that a tenant's process needs is missing or invalid."""


@dataclass(frozen=True)
class SandboxedProcess:
    """A process that waits in sandbox_exec until it is released."""

    process: subprocess.Popen[bytes]

    def release(self) -> None:
        """Let it execute its command."""
        pipe = self.process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(b"\n")
            pipe.flush()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def spawn(
    isolation: Isolation,
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    *,
    data_bytes: int | None = None,
) -> SandboxedProcess:
    """Start an isolated process that waits; it has all its limits except those of its control group."""
    _make_home(isolation)
    process = subprocess.Popen(
        [
            isolation.python or sys.executable,
            "-I",
            "-S",
            str(EXEC),
            _limits(isolation, data_bytes),
            "--",
            *command,
        ],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
        cwd=isolation.home,
        umask=0o077,
        env=dict(environment),
        user=isolation.uid,
        group=isolation.uid,
        extra_groups=None if isolation.uid is None else (),
    )
    return SandboxedProcess(process)


def environment(group: Group, machine: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a tenant's process without those of its job: of the machine's, only PASSED.

    PYTHONSAFEPATH keeps Python from importing modules from its working directory, which is the tenant's.
    """
    isolation = group.isolation
    assert isolation is not None
    passed = {name: value for name, value in machine.items() if PASSED.fullmatch(name)}
    if isolation.python:
        passed["PYTHONPATH"] = ":".join(_libraries())
    own = {"HOME": isolation.home, "WINDLASS_HOME": isolation.home, "TMPDIR": f"{isolation.home}/tmp"}
    return {**passed, **own, "USER": group.tenant, "LOGNAME": group.tenant, "PYTHONSAFEPATH": "1"}


def _libraries() -> list[str]:
    """Return the import path beyond the standard library, for an interpreter of the same version."""
    own = (sys.base_prefix, sys.base_exec_prefix)
    return [path for path in sys.path if Path(path).is_dir() and path and not path.startswith(own)]


def others_can_execute(program: str) -> bool:
    """Whether any user can execute a program and traverse the directories above it."""
    path = Path(program).resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


def others_can_import() -> bool:
    """Whether any user can traverse the directories that contain this package."""
    return others_can_execute(str(EXEC.parents[2]))


def secrets(group: Group) -> dict[str, str]:
    """Read the secrets of a group from the tenant's directory; raise Unready for one that is missing."""
    isolation = group.isolation
    assert isolation is not None
    wanted = {**isolation.credentials, **group.secrets}
    return {name: _secret(isolation, name, place) for name, place in wanted.items()}


def private(path: str, flags: int) -> int:
    """Open a file that only the launcher can read; an opener for `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def private_file(path: Path, isolation: Isolation) -> None:
    """Create a file that the tenant's process may write and other tenants cannot read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        if isolation.uid is not None:
            os.fchown(descriptor, isolation.uid, isolation.uid)
    finally:
        os.close(descriptor)


def _secret(isolation: Isolation, name: str, place: str) -> str:
    if not isolation.secrets or ".." in place.split("/"):
        raise Unready(f"needs the secret {place} for {name}, but its tenant has no secrets on this machine")
    path = Path(isolation.secrets, place)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise Unready(f"needs the secret {place} for {name}, which does not exist: {path}") from None
    with open(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise Unready(f"needs the secret {place}, which other users can read: chmod 600 {path}")
        value = file.read(MAX_SECRET_BYTES + 1)
    if len(value) > MAX_SECRET_BYTES or b"\x00" in value:
        raise Unready(f"the secret {place} cannot be a variable: it is too long, or contains a zero byte")
    return value.decode("utf-8", "surrogateescape").removesuffix("\n")


def _make_home(isolation: Isolation) -> None:
    """Create the tenant's home in a directory that the tenant does not own, so that it cannot be replaced."""
    home = Path(isolation.home)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if isolation.uid is not None:
            os.fchown(descriptor, isolation.uid, isolation.uid)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _limits(isolation: Isolation, data_bytes: int | None) -> str:
    """Return the limits per process; the number of processes is counted per user."""
    wanted = {
        "core": 0,
        "nofile": OPEN_FILES,
        "data": data_bytes,
        "fsize": isolation.disk_bytes,
        "nproc": None if isolation.uid is None else isolation.processes,
    }
    return ",".join(f"{name}={limit}" for name, limit in wanted.items() if limit is not None)
