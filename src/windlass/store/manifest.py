"""Tells a complete directory from an unfinished one.

A writer stores its files first and the manifest last. The manifest lists every file with its length
and digest, so a reader learns in one read whether the directory is complete. A writer that died half-way
leaves no manifest, so its directory does not count. The format is docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from windlass.spec.errors import Damaged, NotFound
from windlass.store.store_dir import StoreDir, translate_os_errors

MANIFEST = "manifest.json"
FORMAT = "windlass-manifest-1"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """Length and digest of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a complete directory, and metadata of its writer."""

    files: dict[str, FileRecord]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    @property
    def digest(self) -> str:
        """Identifies the content: equal files have an equal digest, whatever the metadata."""
        listed = json.dumps({name: r.sha256 for name, r in self.files.items()}, sort_keys=True)
        return hashlib.sha256(listed.encode()).hexdigest()


class DirectoryWriter:
    """Writes the files of one directory and remembers their digests until `commit`.

    Several processes may write one directory: the first opens it, the rest pass `join=True`, and the
    committing process includes the records of all.
    """

    def __init__(self, place: StoreDir, *, join: bool = False) -> None:
        self.place = place
        self.records: dict[str, FileRecord] = {}
        if not join:
            # A directory that is written again is not whole meanwhile.
            place.remove(MANIFEST)

    def write(self, name: str, data: bytes) -> None:
        with self.writing(name) as file:
            file.write(data)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with self.place.writing(name) as file:
            hashing = _Hashing(file)
            yield hashing  # type: ignore[misc]
        self.records[name] = FileRecord(hashing.bytes, hashing.digest.hexdigest())

    def link(self, name: str, source: Path, record: FileRecord) -> bool:
        """Hard-link a file that is on this disk already; return False if that is not possible."""
        if self.place.local is None:
            return False
        target = self.place.local / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.hardlink_to(source)
        except OSError:  # other disks, too many names, no links on this kind of disk: it can still be written
            return False
        self.records[name] = record
        return True

    def adopt(self, name: str) -> None:
        """Add a file that another library wrote into the (local) directory."""
        if self.place.local is None:
            raise ValueError("only files of a local directory can be adopted")
        self.records[name] = _record_of(self.place.local / name)

    def include(self, records: Mapping[str, FileRecord]) -> None:
        """Add files that other processes wrote into the directory, by their records."""
        self.records |= records

    def commit(self, meta: dict[str, Any] | None = None) -> Manifest:
        """Write the manifest, which makes the directory complete."""
        manifest = Manifest(dict(sorted(self.records.items())), meta or {})
        self.place.write(MANIFEST, _encode(manifest))
        return manifest


def load_manifest(place: StoreDir) -> Manifest | None:
    """Return the manifest of a complete directory, or None if it is unfinished or missing."""
    try:
        text = place.read(MANIFEST)
    except NotFound:
        return None
    return read_manifest(text, place.url)


def read_manifest(text: bytes, where: str) -> Manifest:
    """Parse the content of a manifest file."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise Damaged(f"{where}: manifest of unknown format {data['format']!r}", hint=f"known: {FORMAT}")
        files = {name: FileRecord(int(r["bytes"]), str(r["sha256"])) for name, r in data["files"].items()}
        return Manifest(files, data.get("meta", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{where}/{MANIFEST}: not readable as a manifest: {error}") from None


def verify(
    place: StoreDir, manifest: Manifest | None = None, names: Collection[str] | None = None
) -> Manifest:
    """Check every byte of a directory, or of some of its files, against its manifest."""
    manifest = manifest or load_manifest(place)
    if manifest is None:
        raise Damaged(f"{place.url}: no {MANIFEST}, so its writer did not finish")
    for name in manifest.files if names is None else names:
        for _ in _verified_chunks(place, name, manifest):
            pass
    return manifest


def read_verified(place: StoreDir, name: str, manifest: Manifest) -> bytes:
    """Read one file; raise Damaged if it differs from its record."""
    return b"".join(_verified_chunks(place, name, manifest))


def _verified_chunks(place: StoreDir, name: str, manifest: Manifest) -> Iterator[bytes]:
    record = manifest.files.get(name)
    if record is None:
        raise Damaged(f"{place.url}/{name}: not listed in {MANIFEST}")
    digest, length = hashlib.sha256(), 0
    try:
        with place.reading(name) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
                yield chunk
    except NotFound:
        raise Damaged(f"{place.url}/{name}: listed in {MANIFEST} but missing") from None
    if length != record.bytes:
        raise Damaged(f"{place.url}/{name}: {length} bytes, but {record.bytes} were written")
    if digest.hexdigest() != record.sha256:
        raise Damaged(
            f"{place.url}/{name}: the bytes differ from those written (digest {digest.hexdigest()[:12]})"
        )


def _encode(manifest: Manifest) -> bytes:
    files = {name: {"bytes": r.bytes, "sha256": r.sha256} for name, r in manifest.files.items()}
    body = {"format": FORMAT, "files": files, "meta": manifest.meta}
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def _record_of(path: Path) -> FileRecord:
    with translate_os_errors(str(path)), path.open("rb") as file:
        os.fsync(file.fileno())
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


class Digests:
    """A writer that stores nothing and only computes the digests."""

    def __init__(self) -> None:
        self.records: dict[str, FileRecord] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        hashing = _Hashing(None)
        yield hashing  # type: ignore[misc]
        self.records[name] = FileRecord(hashing.bytes, hashing.digest.hexdigest())


class _Hashing:
    """Forwards writes to a file, or to none, and keeps their length and digest."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        self.bytes += memoryview(data).nbytes
        return memoryview(data).nbytes if self._file is None else self._file.write(data)
