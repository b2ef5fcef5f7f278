"""A backup in its store.

    backup.json         {"format", "id", "lock"}: created once; the encrypted key, if there is one
    chunks/ab/abcd...   chunks of files, named by their content
    snapshots/ID        the list of files of one backup; written last, so an interrupted backup leaves none
    claims/...          locks (`locks`)
    seen.json           facts about the home between two snapshots (`schedule`)

Changed bytes are detected: the name of a chunk or a snapshot contains the digest of its content.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from windlass.backup.encryption import BackupKeys, Codec, new_lock, unlock
from windlass.backup.snapshot import BackupSnapshot, decode, encode, stamp
from windlass.spec.errors import BadInput, Damaged, NotFound, StoreFailed, did_you_mean
from windlass.spec.protocol.backoff import Backoff
from windlass.store.store_dir import StoreDir

FORMAT = "windlass-backup-1"
HEADER = "backup.json"
SEEN = "seen.json"
ATTEMPTS = 5
BACKOFF = Backoff(first_s=0.2, max_s=5.0)
_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{16}")

T = TypeVar("T")


class BackupRepository:
    """A backup in its store. Methods may be called by several threads."""

    def __init__(self, place: StoreDir, id_: str, keys: BackupKeys | None) -> None:
        self.place, self.id = place, id_
        self._codec = Codec(keys)

    @property
    def is_sealed(self) -> bool:
        return self._codec.digest(b"") != Codec().digest(b"")

    def chunks(self) -> dict[str, int]:
        """Return the stored chunks with their sizes in bytes."""
        found = tried(lambda: self.place.sizes("chunks"))
        return {name.rsplit("/", 1)[-1]: size for name, size in found.items() if size}

    def name(self, data: bytes) -> str:
        """Return the name of a chunk with this content."""
        return self._codec.digest(data)

    def put(self, name: str, data: bytes) -> int:
        """Store a chunk; return its stored size."""
        packed = self._codec.pack(data, name)
        tried(lambda: self.place.write(_chunk(name), packed))
        return len(packed)

    def get(self, name: str) -> bytes:
        """Return a chunk; raise Damaged if it is missing or does not match its name."""
        where = f"{self.place.url}/{_chunk(name)}"
        try:
            stored = tried(lambda: self.place.read(_chunk(name)))
        except NotFound:
            raise Damaged(f"{where}: a snapshot lists it, but it is missing") from None
        data = self._codec.unpack(stored, name, where)
        if self._codec.digest(data) != name:
            raise Damaged(f"{where}: the bytes differ from those written")
        return data

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            tried(lambda name=name: self.place.remove(_chunk(name)))  # type: ignore[misc]

    def ids(self) -> list[str]:
        """List the snapshots, oldest first."""
        found = tried(lambda: self.place.names("snapshots"))
        return sorted(id_ for name in found if _ID.fullmatch(id_ := name.rsplit("/", 1)[-1]))

    def write(self, snapshot: BackupSnapshot) -> BackupSnapshot:
        """Store a snapshot; all chunks that it lists must be stored already."""
        data = encode(snapshot)
        id_ = f"{stamp(snapshot.made_s)}-{self._codec.digest(data)[:16]}"
        packed = self._codec.pack(data, id_)
        tried(lambda: self.place.write(f"snapshots/{id_}", packed))
        return replace(snapshot, id=id_)

    def read(self, id_: str) -> BackupSnapshot:
        where = f"{self.place.url}/snapshots/{id_}"
        stored = tried(lambda: self.place.read(f"snapshots/{id_}"))
        data = self._codec.unpack(stored, id_, where)
        if not id_.endswith(self._codec.digest(data)[:16]):
            raise Damaged(f"{where}: the bytes differ from those written")
        return decode(data, id_, where)

    def find(self, wanted: str | None = None) -> BackupSnapshot:
        """Return the newest snapshot, or the one whose id starts with `wanted`."""
        ids = self.ids()
        if not ids:
            raise NotFound(
                f"{self.place.url}: holds no snapshot yet", hint="`windlass backup make` makes one"
            )
        if wanted is None:
            return self.read(ids[-1])
        found = [id_ for id_ in ids if id_.startswith(wanted)]
        if len(found) != 1:
            what = "no snapshot is called" if not found else f"{len(found)} snapshots begin with"
            raise NotFound(f"{self.place.url}: {what} '{wanted}'", hint=did_you_mean(wanted, ids[-5:]))
        return self.read(found[0])

    def forget(self, id_: str) -> None:
        tried(lambda: self.place.remove(f"snapshots/{id_}"))

    def see(self, **facts: Any) -> None:
        """Record facts about the home between snapshots."""
        known = self.seen()
        tried(lambda: self.place.write(SEEN, json.dumps({**known, **facts}).encode()))

    def seen(self) -> dict[str, Any]:
        try:
            return dict(json.loads(tried(lambda: self.place.read(SEEN))))
        except (NotFound, ValueError):
            return {}


def tried(work: Callable[[], T]) -> T:
    """Call `work`, with retries if the store fails: a long backup must survive a short outage."""
    for attempt in range(1, ATTEMPTS):
        try:
            return work()
        except StoreFailed as failure:
            if "credentials" in (failure.hint or "") and "no permission" in failure.message:
                raise
            time.sleep(BACKOFF.wait_s(attempt, random.random()))
    return work()


def open_repository(url: str, secret: bytes | None = None, *, create: bool = False) -> BackupRepository:
    """Open a backup; with `create`, create it if there is none."""
    place = StoreDir(url)
    header = read_header(place, HEADER, FORMAT)
    if header is None and not create:
        raise NotFound(f"{url}: there is no backup", hint="`windlass backup make URL` creates one")
    if header is None:
        lock = new_lock(secret)[0] if secret is not None else None
        header = begin(place, HEADER, FORMAT, lock)
    return BackupRepository(place, header["id"], _opened(header["lock"], secret, url))


def begin(place: StoreDir, name: str, form: str, lock: dict[str, Any] | None = None) -> dict[str, Any]:
    """Create the header of a chunk store; return the stored one, which another process may have created."""
    made = {"format": form, "id": secrets.token_hex(8), "lock": lock}
    tried(lambda: place.create(name, (json.dumps(made, indent=1) + "\n").encode()))
    header = read_header(place, name, form)
    if header is None:
        raise StoreFailed(f"{place.url}: the header that was written is missing")
    return header


def read_header(place: StoreDir, name: str, form: str) -> dict[str, Any] | None:
    try:
        header = json.loads(tried(lambda: place.read(name)))
        if header["format"] != form:
            raise Damaged(f"{place.url}: of unknown format {header['format']!r}", hint=f"known: {form}")
        return {"id": str(header["id"]), "lock": header["lock"]}
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{place.url}/{name}: not readable") from None


def _opened(lock: dict[str, Any] | None, secret: bytes | None, url: str) -> BackupKeys | None:
    if lock is None and secret is not None:
        raise BadInput(
            f"{url}: this backup is not encrypted", hint="give no key, or create another backup elsewhere"
        )
    if lock is not None and secret is None:
        raise BadInput(f"{url}: this backup is encrypted", hint="--key-file FILE, or $WINDLASS_BACKUP_KEY")
    return unlock(lock, secret, url) if lock is not None and secret is not None else None


def _chunk(name: str) -> str:
    return f"chunks/{name[:2]}/{name}"
