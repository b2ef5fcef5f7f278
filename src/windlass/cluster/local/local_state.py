"""The files about the groups on this machine (docs/formats/local-groups.md).

ROOT/TENANT/NAME/wanted.json     the desired group, and whether it is to stop
ROOT/TENANT/NAME/members.json    the observed members, written by the daemon
ROOT/TENANT/NAME/daemon.lock     locked while the daemon runs
ROOT/TENANT/.NAME.lock           locked while wanted.json is changed or removed
ROOT/logs/TENANT/NAME-INDEX.log  the output of members; kept when a group is removed
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from windlass.cluster.backend import Group, group_bytes, group_from
from windlass.cluster.process.process_supervisor import MemberRecord
from windlass.spec.errors import InUse
from windlass.store.lock import held, locked
from windlass.store.store_dir import StoreDir

WANTED, MEMBERS, DAEMON = "wanted.json", "members.json", "daemon.lock"
PATIENCE_S = 10.0
"""For other processes to release a lock, which none holds for long."""


@dataclass(frozen=True)
class AssignedCores:
    """The resources assigned to a member: cores and GPUs by number, and memory."""

    cores: tuple[int, ...] = ()
    share: float = 0.0
    """How many cores of these it uses: less than their number if it requests a fraction."""
    memory_bytes: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Written:
    """What the daemon writes: the members, their assignments by index, and why some have none."""

    records: tuple[MemberRecord, ...] = ()
    assignments: dict[int, AssignedCores] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class DesiredGroup:
    """The group as last requested."""

    group: Group
    stopping: bool = False


@dataclass(frozen=True)
class GroupFolder:
    """The directory of one group."""

    root: Path
    tenant: str
    name: str

    @property
    def path(self) -> Path:
        return self.root / self.tenant / self.name

    @property
    def daemon_lock(self) -> Path:
        return self.path / DAEMON

    def log(self, index: int) -> Path:
        return self.root / "logs" / self.tenant / f"{self.name}-{index}.log"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the desired state for a change; wait for other writers."""
        with patient(self.root / self.tenant / f".{self.name}.lock", f"group {self.tenant}/{self.name}"):
            yield

    def wanted(self) -> DesiredGroup | None:
        try:
            written = (self.path / WANTED).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        fields = msgspec.json.decode(written)
        return DesiredGroup(group_from(msgspec.json.encode(fields["group"])), bool(fields["stopping"]))

    def want(self, wanted: DesiredGroup) -> None:
        group = msgspec.Raw(group_bytes(wanted.group))
        StoreDir(self.path).write(
            WANTED, msgspec.json.encode({"version": 1, "group": group, "stopping": wanted.stopping})
        )

    def written(self) -> Written:
        try:
            return msgspec.json.decode((self.path / MEMBERS).read_bytes(), type=Written)
        except FileNotFoundError:
            return Written()

    def write(self, written: Written) -> None:
        StoreDir(self.path).write(MEMBERS, msgspec.json.encode(written))

    def has_daemon(self) -> bool:
        """Whether the group has a running daemon."""
        try:
            if self.daemon_lock.exists():
                with held(self.daemon_lock, "daemon"):
                    pass
        except InUse:
            return True
        return False

    def remove(self) -> None:
        """Remove the directory: wanted.json first, so that a partly removed directory is no group."""
        (self.path / WANTED).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def folders(root: Path, tenant: str | None = None) -> list[GroupFolder]:
    """Return the recorded groups, by name."""
    found = sorted(root.glob(f"{tenant or '*'}/*/{WANTED}"))
    return [GroupFolder(root, path.parent.parent.name, path.parent.name) for path in found]


@contextlib.contextmanager
def patient(file: Path, what: str) -> Iterator[None]:
    """Lock a file; wait for the process that holds it."""
    until = time.monotonic() + PATIENCE_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(file, what))
                break
            except InUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        yield
