"""What one backup holds, as data: every file with its digest and the chunks that it is made of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from windlass.spec.errors import Damaged

FORMAT = "windlass-snapshot-1"
Role = Literal["file", "sqlite", "dump"]


@dataclass(frozen=True)
class FileEntry:
    """A file of the home. A `dump` is a database that was no file; it becomes one when it comes back."""

    path: str
    bytes: int
    sha256: str
    mode: int
    modified_s: float
    chunks: tuple[str, ...]
    role: Role = "file"


@dataclass(frozen=True)
class BackupSnapshot:
    """A home as it was between two moments."""

    home: str
    host: str
    code: str
    began_s: float
    made_s: float
    newest_write_s: float
    """When the newest of these files was written."""
    files: tuple[FileEntry, ...]
    left_out: tuple[str, ...] = ()
    """What could not be kept, and why."""
    id: str = field(default="", compare=False)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    def facts(self) -> dict[str, Any]:
        """What a script wants to know."""
        return {
            "snapshot": self.id,
            "made_s": self.made_s,
            "made": datetime.fromtimestamp(self.made_s, UTC).isoformat(timespec="seconds"),
            "home": self.home,
            "host": self.host,
            "files": len(self.files),
            "bytes": self.bytes,
            "left_out": list(self.left_out),
        }


def encode(snapshot: BackupSnapshot) -> bytes:
    told = asdict(snapshot)
    del told["id"]
    return json.dumps({"format": FORMAT, **told}, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes, id_: str, where: str) -> BackupSnapshot:
    try:
        told = json.loads(data)
        if told.pop("format") != FORMAT:
            raise ValueError("another format")
        files = tuple(FileEntry(**{**file, "chunks": tuple(file["chunks"])}) for file in told.pop("files"))
        return replace(BackupSnapshot(**told, files=files), left_out=tuple(told["left_out"]), id=id_)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{where}: not readable as a snapshot: {error}") from None


def stamp(seconds: float) -> str:
    """Return a moment as the beginning of a snapshot's name: names in order are snapshots in order."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def moment(id_: str) -> float:
    """Return the moment that a snapshot's name tells."""
    return datetime.strptime(id_.partition("-")[0] + "+0000", "%Y%m%dT%H%M%S.%fZ%z").timestamp()
