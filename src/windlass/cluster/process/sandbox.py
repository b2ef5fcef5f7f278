"""Starts a tenant's process so that it can reach nothing of another's.

    a scrubbed environment -> its own user id, home and umask -> a gate (sandbox_exec.py), at which it waits
    until it is held to its limits (cgroup_limits.py) -> the process

Of the machine's variables only those of PASSED are handed on: no credentials, no keys, no address of a
database. Its secrets are files that root alone reads, SECRET/KEY below one directory, as Kubernetes mounts
them; their values are in the process and nowhere else. Where whoever launches is not root, all tenants have
one user id, and what that means is said in docs/guides/tenants.md.
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
GATE = Path(sandbox_exec.__file__)
MAX_SECRET_BYTES = 1 << 16
OPEN_FILES = 4096


class Unready(ProcessFailed):
    """Something that a tenant's process needs is not there, or not as it must be."""


@dataclass(frozen=True)
class Gated:
    """A process that waits at its gate."""

    process: subprocess.Popen[bytes]

    def open(self) -> None:
        """Let it begin."""
        door = self.process.stdin
        assert door is not None
        with contextlib.suppress(BrokenPipeError):
            door.write(b"\n")
            door.flush()
        with contextlib.suppress(BrokenPipeError):
            door.close()


def spawn(
    walls: Isolation,
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    *,
    data_bytes: int | None = None,
) -> Gated:
    """Start a process that is walled in and waits; it has its limits but those of its control group."""
    _make_home(walls)
    process = subprocess.Popen(
        [walls.python or sys.executable, "-I", "-S", str(GATE), _limits(walls, data_bytes), "--", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
        cwd=walls.home,
        umask=0o077,
        env=dict(environment),
        user=walls.uid,
        group=walls.uid,
        extra_groups=None if walls.uid is None else (),
    )
    return Gated(process)


def environment(group: Group, machine: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a tenant's process before those of its job: of the machine's, only PASSED.

    PYTHONSAFEPATH keeps Python from taking modules out of the directory that it is started in, which is
    the tenant's own.
    """
    walls = group.walls
    assert walls is not None
    passed = {name: value for name, value in machine.items() if PASSED.fullmatch(name)}
    if walls.python:
        passed["PYTHONPATH"] = ":".join(_libraries())
    own = {"HOME": walls.home, "WINDLASS_HOME": walls.home, "TMPDIR": f"{walls.home}/tmp"}
    return {**passed, **own, "USER": group.tenant, "LOGNAME": group.tenant, "PYTHONSAFEPATH": "1"}


def _libraries() -> list[str]:
    """Return where this interpreter finds what is not its own library, for one of the same version."""
    own = (sys.base_prefix, sys.base_exec_prefix)
    return [path for path in sys.path if Path(path).is_dir() and path and not path.startswith(own)]


def others_can_execute(program: str) -> bool:
    """Whether any user can execute a program: each directory above it lets them pass."""
    path = Path(program).resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


def secrets(group: Group) -> dict[str, str]:
    """Read the secrets of a group from the tenant's own directory; say which one is not there."""
    walls = group.walls
    assert walls is not None
    wanted = {**walls.credentials, **group.secrets}
    return {name: _secret(walls, name, place) for name, place in wanted.items()}


def private(path: str, flags: int) -> int:
    """Open a file that only whoever launches can read again; an opener for `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def private_file(path: Path, walls: Isolation) -> None:
    """Make a file that the tenant's process may write and other tenants cannot read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        if walls.uid is not None:
            os.fchown(descriptor, walls.uid, walls.uid)
    finally:
        os.close(descriptor)


def _secret(walls: Isolation, name: str, place: str) -> str:
    if not walls.secrets or ".." in place.split("/"):
        raise Unready(f"needs the secret {place} for {name}, and its tenant has none here")
    path = Path(walls.secrets, place)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        raise Unready(f"needs the secret {place} for {name}, which is not there: {path}") from None
    with open(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise Unready(f"needs the secret {place}, which others can read: chmod 600 {path}")
        value = file.read(MAX_SECRET_BYTES + 1)
    if len(value) > MAX_SECRET_BYTES or b"\x00" in value:
        raise Unready(f"the secret {place} cannot be a variable: it is too long, or holds a zero byte")
    return value.decode("utf-8", "surrogateescape").removesuffix("\n")


def _make_home(walls: Isolation) -> None:
    """Make the tenant's home, in a directory that is not the tenant's: nobody can move it meanwhile."""
    home = Path(walls.home)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if walls.uid is not None:
            os.fchown(descriptor, walls.uid, walls.uid)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _limits(walls: Isolation, data_bytes: int | None) -> str:
    """Return what the system counts for each process; how many they are is counted by user."""
    wanted = {
        "core": 0,
        "nofile": OPEN_FILES,
        "data": data_bytes,
        "fsize": walls.disk_bytes,
        "nproc": None if walls.uid is None else walls.processes,
    }
    return ",".join(f"{name}={most}" for name, most in wanted.items() if most is not None)
