"""A snapshot as data: every file with its digest and its chunks."""

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
    """A file of the home. A `dump` is a database on a server; a restore loads it or makes it a file."""

    path: str
    bytes: int
    sha256: str
    mode: int
    modified_s: float
    chunks: tuple[str, ...]
    role: Role = "file"


@dataclass(frozen=True)
class BackupSnapshot:
    """A home as it was between `began_s` and `made_s`."""

    home: str
    host: str
    code: str
    began_s: float
    made_s: float
    newest_write_s: float
    """When the newest of these files was written."""
    files: tuple[FileEntry, ...]
    left_out: tuple[str, ...] = ()
    """What could not be backed up, and why."""
    id: str = field(default="", compare=False)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    def facts(self) -> dict[str, Any]:
        """Return the snapshot's properties as JSON values."""
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
    fields = asdict(snapshot)
    del fields["id"]
    return json.dumps({"format": FORMAT, **fields}, ensure_ascii=False, separators=(",", ":")).encode()


def decode(data: bytes, id_: str, where: str) -> BackupSnapshot:
    try:
        fields = json.loads(data)
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        files = tuple(FileEntry(**{**file, "chunks": tuple(file["chunks"])}) for file in fields.pop("files"))
        return replace(BackupSnapshot(**fields, files=files), left_out=tuple(fields["left_out"]), id=id_)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{where}: not readable as a snapshot: {error}") from None


def stamp(seconds: float) -> str:
    """Return the prefix of a snapshot's id for a time; ids sort by time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def moment(id_: str) -> float:
    """Return the time in a snapshot's id."""
    return datetime.strptime(id_.partition("-")[0] + "+0000", "%Y%m%dT%H%M%S.%fZ%z").timestamp()
