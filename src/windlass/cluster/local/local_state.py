"""What is written down of the groups on this machine (docs/formats/local-groups.md).

ROOT/TENANT/NAME/wanted.json     the group as it was asked for, and whether it is to stop
ROOT/TENANT/NAME/members.json    what is there, by the warden
ROOT/TENANT/NAME/warden.lock     held while a warden lives
ROOT/TENANT/.NAME.lock           held by who changes what is wanted, or removes it
ROOT/logs/TENANT/NAME-INDEX.log  what members printed; they stay when a group goes
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

WANTED, MEMBERS, WARDEN = "wanted.json", "members.json", "warden.lock"
PATIENCE_S = 10.0
"""For others to let go of a lock that is never held for long."""


@dataclass(frozen=True)
class AssignedCores:
    """What a member has of the machine for itself: cores, memory and GPUs by number."""

    cores: tuple[int, ...] = ()
    share: float = 0.0
    """Of its cores, in cores: less than their number where it asked for a fraction."""
    memory_bytes: int = 0
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Written:
    """What a warden writes down: the members and their seats, by index, and why some have none."""

    records: tuple[MemberRecord, ...] = ()
    seats: dict[int, AssignedCores] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class DesiredGroup:
    """What was asked for last."""

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
    def warden_lock(self) -> Path:
        return self.path / WARDEN

    def log(self, index: int) -> Path:
        return self.root / "logs" / self.tenant / f"{self.name}-{index}.log"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one who changes what is wanted; wait for others, who are never long."""
        with patient(self.root / self.tenant / f".{self.name}.lock", f"group {self.tenant}/{self.name}"):
            yield

    def wanted(self) -> DesiredGroup | None:
        try:
            written = (self.path / WANTED).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        told = msgspec.json.decode(written)
        return DesiredGroup(group_from(msgspec.json.encode(told["group"])), bool(told["stopping"]))

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

    def guarded(self) -> bool:
        """Whether a warden lives."""
        try:
            if self.warden_lock.exists():
                with held(self.warden_lock, "warden"):
                    pass
        except InUse:
            return True
        return False

    def remove(self) -> None:
        """Remove the directory: what is wanted first, so that nothing half removed is taken for a group."""
        (self.path / WANTED).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def folders(root: Path, tenant: str | None = None) -> list[GroupFolder]:
    """Return the groups that are written down, by name."""
    found = sorted(root.glob(f"{tenant or '*'}/*/{WANTED}"))
    return [GroupFolder(root, path.parent.parent.name, path.parent.name) for path in found]


@contextlib.contextmanager
def patient(file: Path, what: str) -> Iterator[None]:
    """Hold a file alone, after whoever holds it now."""
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
