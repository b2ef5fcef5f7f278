"""Copies of complete directories in a store, with each file kept once, by its digest.

    NAME/manifest.json    byte for byte as it is in the directory itself
    objects/SHA256        a file of any of the directories

A file that several directories share is sent and kept once. An interrupted copy resumes where it stopped: the
files that arrived are there under their digests. The manifest is sent last, so a directory is in the mirror
once its manifest is. One writer at a time; the format is docs/formats/mirror.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

from windlass.spec.errors import Damaged, NotFound, StoreFailed
from windlass.store.manifest import CHUNK_BYTES, MANIFEST, FileRecord, Manifest, load_manifest
from windlass.store.store_dir import StoreDir, translate_os_errors

OBJECTS = "objects"
ROUNDS = 4
"""Listings in one push; the last must show everything."""


class Mirror:
    """The copies below one URL."""

    def __init__(self, place: StoreDir) -> None:
        self.place = place

    def names(self) -> list[str]:
        """List the directories that are complete in the mirror."""
        return sorted(name[: -len(MANIFEST) - 1] for name in self.place.names() if _is_manifest(name))

    def manifest(self, name: str) -> Manifest:
        found = load_manifest(self.place.sub(name))
        if found is None:
            raise NotFound(f"{self.place.url}: no copy of {name}")
        return found

    def push(self, directory: Path, stopped: Callable[[], bool] = lambda: False) -> int:
        """Send a complete directory; return how many bytes were sent.

        Its bytes are checked against its manifest on the way; a mismatch raises Damaged. The objects are
        listed once more before the manifest is sent, in case another writer removed some meanwhile.
        """
        manifest = load_manifest(StoreDir(directory))
        if manifest is None:
            raise NotFound(f"{directory}: has no manifest, so it is not complete and cannot be sent")
        moved = 0
        for _ in range(ROUNDS):
            missing = self._missing(manifest)
            if not missing:
                self.place.write(f"{directory.name}/{MANIFEST}", StoreDir(directory).read(MANIFEST))
                return moved
            for record, name in missing.items():
                if stopped():
                    return moved
                self._send(directory / name, record)
                moved += record.bytes
        raise StoreFailed(f"{self.place.url}: objects that were sent are missing afterwards")

    def fetch(self, name: str, target: Path) -> None:
        """Download a directory to local disk and check every byte; its manifest is written last."""
        manifest = self.manifest(name)
        StoreDir(target).remove(MANIFEST)
        for file, record in manifest.files.items():
            self._bring(record, target / file)
        StoreDir(target).write(MANIFEST, self.place.read(f"{name}/{MANIFEST}"))

    def check(self, name: str) -> Manifest:
        """Check every byte of a directory in the store."""
        manifest = self.manifest(name)
        for record in manifest.files.values():
            self._pass(record, lambda _: None)
        return manifest

    def retain(self, names: Collection[str]) -> list[str]:
        """Remove all other directories, and unreferenced objects; return what was removed.

        Manifests are removed before objects, so every manifest always has the objects that it lists.
        """
        gone = [name for name in self.names() if name not in names]
        for name in gone:
            self.place.remove(name)
        wanted = {_object(r) for name in self.names() for r in self.manifest(name).files.values()}
        for name in self.place.names(OBJECTS):
            if name not in wanted:
                self.place.remove(name)
        return gone

    def _missing(self, manifest: Manifest) -> dict[FileRecord, str]:
        """Return the files whose content is not in the store yet, each with a name in the directory."""
        held = self.place.sizes(OBJECTS)
        files = {record: name for name, record in manifest.files.items()}
        return {record: name for record, name in files.items() if held.get(_object(record)) != record.bytes}

    def _send(self, path: Path, record: FileRecord) -> None:
        """Send one file under its digest; it appears there only if it has that digest."""
        digest, length = hashlib.sha256(), 0
        with (
            translate_os_errors(str(path)),
            path.open("rb") as source,
            self.place.writing(_object(record)) as target,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
                target.write(chunk)
            _check(str(path), record, digest.hexdigest(), length)

    def _bring(self, record: FileRecord, path: Path) -> None:
        place = StoreDir(path.parent)
        with place.writing(path.name) as target:
            self._pass(record, target.write)

    def _pass(self, record: FileRecord, use: Callable[[bytes], object]) -> None:
        """Read an object from end to end; raise Damaged if its digest differs from its name."""
        digest, length, where = hashlib.sha256(), 0, f"{self.place.url}/{_object(record)}"
        try:
            with self.place.reading(_object(record)) as source:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    length += len(chunk)
                    use(chunk)
        except NotFound:
            raise Damaged(f"{where}: listed in a {MANIFEST} but missing") from None
        _check(where, record, digest.hexdigest(), length)


def _check(where: str, record: FileRecord, digest: str, length: int) -> None:
    if length != record.bytes:
        raise Damaged(f"{where}: {length} bytes, but {record.bytes} were written")
    if digest != record.sha256:
        raise Damaged(f"{where}: the bytes differ from those written (digest {digest[:12]})")


def _object(record: FileRecord) -> str:
    return f"{OBJECTS}/{record.sha256}"


def _is_manifest(name: str) -> bool:
    return name.count("/") == 1 and name.endswith(f"/{MANIFEST}")
