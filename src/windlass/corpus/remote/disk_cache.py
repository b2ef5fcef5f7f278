"""A folder of shards on local disk, which the processes of a machine share within one limit.

    index.json          the state of the eviction policy, which counts the bytes; changed under `lock`
    lock                held alone while the index is read and changed, never while something is fetched
    CORPUS/use          held by every process that has the corpus open
    CORPUS/NAME.shard   a shard
    CORPUS/NAME.shard.part    one that is being fetched, held by whoever fetches it

A process may be killed at any moment. Its holds go with it, so a part that nobody holds is debris, and
every change is made in an order in which the index counts too much rather than too little: the limit
holds, and the next process that opens the folder (`sweep`) sets the index right.

Eviction unlinks. On Linux a file that is open or mapped stays readable until it is closed, so no reader
sees a shard vanish; a reader holds a file open no longer than a read takes, so the room is soon free.
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
    """The folder. A key is "CORPUS/NAME"; what takes a policy is called while `policy` is held."""

    def __init__(self, folder: Path, policy: str, limit_bytes: int) -> None:
        self.folder, self._kind, self._limit_bytes = folder, policy, limit_bytes

    @contextmanager
    def policy(self) -> Iterator[Policy]:
        """Hold the folder alone and its policy in hand, then save it; after an error it stays as it was."""
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
        """Return an empty file, held alone, for the bytes of a shard."""
        path = self._path(key, PART)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def finish(self, key: str, part: IO[bytes]) -> None:
        """Give a part its name, and let go those who wait for it; it stays held together with others."""
        part.flush()
        os.fsync(part.fileno())
        Path(part.name).rename(self._path(key))
        fcntl.flock(part, fcntl.LOCK_SH)

    def is_coming(self, key: str) -> bool:
        return is_held(self._path(key, PART))

    def wait_for(self, key: str) -> None:
        """Wait until whoever fetches a shard is done, in one way or the other."""
        with suppress(FileNotFoundError), self._path(key, PART).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def is_used(self, corpus: str) -> bool:
        return is_held(self.use_file(corpus))

    def use_file(self, corpus: str) -> Path:
        return self.folder / corpus / "use"

    def make_room(self, policy: Policy, size: int, *, forced: bool) -> tuple[int, bool]:
        """Evict what nobody holds and, when `forced`, also what others expect to read.

        Return how many shards went, and whether `size` more bytes fit now.
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
        """Make the policy know what is on disk and nothing else, and remove the parts of dead processes."""
        # Parts before shards: one that gets its name meanwhile is then seen twice rather than never.
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
    """Tell whether anyone holds a file, together with others or alone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
