"""A directory of shards on local disk that the processes of a machine share within one limit.

    index.json          the state of the eviction policy, which counts the bytes; changed under `lock`
    lock                locked exclusively while the index is read and changed, never during a download
    CORPUS/use          locked (shared) by every process that has the corpus open
    CORPUS/NAME.shard   a shard
    CORPUS/NAME.shard.part    a shard being downloaded, locked by the downloader

A process may be killed at any moment. Its locks end with it, so a part without a lock is debris, and every
change is made in an order in which the index counts too much rather than too little: the limit is kept, and
the next process that opens the directory (`sweep`) corrects the index.

Eviction unlinks. On Linux a file that is open or mapped stays readable until it is closed, so no reader
sees a shard vanish; a reader keeps a file open no longer than a read takes, so the space is soon free.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from windlass.corpus.remote.eviction import POLICIES, Policy, make_room
from windlass.store.store_dir import translate_os_errors

INDEX = "index.json"
FORMAT = "windlass-cache-1"
SHARD, PART = ".shard", ".shard.part"


class DiskCache:
    """The directory. A key is "CORPUS/NAME"; methods with a policy argument are called within `policy`."""

    def __init__(self, folder: Path, policy: str, limit_bytes: int) -> None:
        self.folder, self._kind, self._limit_bytes = folder, policy, limit_bytes

    @contextmanager
    def policy(self) -> Iterator[Policy]:
        """Lock the directory and load its policy; save it at the end, except after an error."""
        with translate_os_errors(str(self.folder)):
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                policy = self._load()
                yield policy
                self._save(policy)

    def whole(self, key: str, size: int) -> IO[bytes] | None:
        """Open a shard that is here; one of another length counts as absent."""
        try:
            file = self._path(key).open("rb", buffering=0)
        except FileNotFoundError:
            return None
        if os.fstat(file.fileno()).st_size == size:
            return file
        file.close()
        return None

    def new_part(self, key: str) -> IO[bytes]:
        """Return an empty, exclusively locked file for the bytes of a shard."""
        path = self._path(key, PART)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def finish(self, key: str, part: IO[bytes]) -> None:
        """Rename a part to its shard and downgrade the lock to shared, which releases waiting processes."""
        part.flush()
        os.fsync(part.fileno())
        Path(part.name).rename(self._path(key))
        fcntl.flock(part, fcntl.LOCK_SH)

    def is_coming(self, key: str) -> bool:
        return is_held(self._path(key, PART))

    def wait_for(self, key: str) -> None:
        """Wait until the process that downloads a shard has finished or failed."""
        with suppress(FileNotFoundError), self._path(key, PART).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def is_used(self, corpus: str) -> bool:
        return is_held(self.use_file(corpus))

    def use_file(self, corpus: str) -> Path:
        return self.folder / corpus / "use"

    def make_room(self, policy: Policy, size: int, *, forced: bool) -> tuple[int, bool]:
        """Evict shards without locks and, when `forced`, also those that other processes expect to read.

        Return how many were evicted, and whether `size` more bytes fit now.
        """
        gone, enough = make_room(policy, size, lambda key: self.is_coming(key) or is_held(self._path(key)))
        if forced and not enough:
            more, enough = make_room(policy, size, self.is_coming)
            gone += more
        self.remove(gone)
        return len(gone), enough

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def sweep(self, policy: Policy) -> None:
        """Make the policy match the files on disk, and remove the parts of dead processes."""
        # Parts before shards: one that is renamed meanwhile is then seen twice rather than never.
        parts = {_key(path, PART): path for path in self.folder.glob(f"*/*{PART}")}
        for key in [key for key, path in parts.items() if not is_held(path)]:
            parts.pop(key).unlink(missing_ok=True)
        found = sorted(self.folder.glob(f"*/*{SHARD}"), key=lambda path: path.stat().st_mtime)
        sizes = {_key(path, SHARD): path.stat().st_size for path in found}
        for key in policy.names():
            if key not in sizes and key not in parts:
                policy.forget(key)
        for key, size in sizes.items():
            if key not in policy:
                policy.admit(key, size)

    def _load(self) -> Policy:
        """Return the policy as the last process left it, or one built from what is on disk."""
        policy = POLICIES[self._kind](self._limit_bytes)
        try:
            data = json.loads((self.folder / INDEX).read_bytes())
            if (data["format"], data["policy"]) == (FORMAT, self._kind):
                policy.restore(data["state"])
                return policy
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            policy = POLICIES[self._kind](self._limit_bytes)
        self.sweep(policy)
        return policy

    def _save(self, policy: Policy) -> None:
        """Replace the index. It is not synced: one that a power cut destroys is built again."""
        body = {"format": FORMAT, "policy": self._kind, "state": policy.state()}
        part = self.folder / f"{INDEX}.part"
        part.write_text(json.dumps(body))
        part.replace(self.folder / INDEX)

    def _path(self, key: str, ending: str = SHARD) -> Path:
        return self.folder / f"{key}{ending}"


def _key(path: Path, ending: str) -> str:
    return f"{path.parent.name}/{path.name.removesuffix(ending)}"


def is_held(path: Path) -> bool:
    """Whether any process has a lock on a file, shared or exclusive."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
