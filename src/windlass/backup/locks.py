"""Locks in the store: keep chunks from being pruned while a backup or a restore uses them.

    claims/make-HOST-PID-....json   {"until_s"}: renewed while its holder lives

Making and restoring rely on existing chunks; pruning deletes chunks that no snapshot lists. A process writes
its own lock first and then lists the locks of the other kind, so two processes that start at the same time
cannot both overlook a lock: pruning gives way, making and restoring wait. A lock has expired when it was not
renewed for longer than clock skew explains; the lock of a dead process of this machine has expired at once.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from windlass.spec.errors import InUse, NotFound, StoreFailed
from windlass.store.store_dir import StoreDir

Kind = Literal["make", "read", "prune", "rollout"]
TERM_S = 600.0
RENEW_S = 60.0
SKEW_S = 300.0
"""Assumed bound on the clock skew between machines."""
LOOK_AGAIN_S = 1.0


class BackupLock:
    """A lock held by this process; `is_good` says whether other processes must still respect it."""

    def __init__(self, place: StoreDir, kind: Kind, clock: Callable[[], float] = time.time) -> None:
        self._place, self._clock = place, clock
        self.name = f"claims/{kind}-{_host()}-{os.getpid()}-{secrets.token_hex(4)}.json"
        self._renewed = time.monotonic()
        self._ended = threading.Event()

    @property
    def is_good(self) -> bool:
        return time.monotonic() - self._renewed < TERM_S

    def renew(self) -> None:
        begun = time.monotonic()
        self._place.write(self.name, json.dumps({"until_s": self._clock() + TERM_S}).encode())
        self._renewed = begun

    def end(self) -> None:
        self._ended.set()
        with suppress(StoreFailed):  # it expires by itself
            self._place.remove(self.name)

    def keep(self) -> None:
        """Renew the lock until it ends; a failed renewal is tried again at the next interval."""
        while not self._ended.wait(RENEW_S):
            with suppress(StoreFailed):
                self.renew()


@contextmanager
def claimed(place: StoreDir, kind: Kind, *, patience_s: float = 60.0) -> Iterator[BackupLock]:
    """Hold a lock to use chunks, once no process prunes; raise InUse if that takes too long."""
    with _held(place, kind) as claim:
        until = time.monotonic() + patience_s
        while others(place, ("prune",)):
            if time.monotonic() > until:
                raise InUse(
                    f"{place.url}: is being pruned", hint="wait for it, then run the same command again"
                )
            time.sleep(LOOK_AGAIN_S)
        yield claim


@contextmanager
def pruning(place: StoreDir) -> Iterator[bool]:
    """Hold the lock to delete chunks; yield whether no process uses them."""
    with _held(place, "prune"):
        yield not others(place, ("make", "read"))


@contextmanager
def alone(place: StoreDir, kind: Kind, what: str) -> Iterator[None]:
    """Hold an exclusive lock; of two processes that try at once, at least one is refused."""
    with _held(place, kind) as claim:
        rivals = [name for name in others(place, (kind,)) if name != claim.name]
        if rivals:
            who = rivals[0].rsplit("/", 1)[-1].removesuffix(".json")
            raise InUse(f"{what} is in use by {who}", hint="wait for it, or stop it first")
        yield


def others(place: StoreDir, kinds: tuple[Kind, ...], now_s: float | None = None) -> list[str]:
    """List the unexpired locks of some kinds."""
    named = [name for name in place.names("claims") if name.rsplit("/", 1)[-1].partition("-")[0] in kinds]
    now_s = time.time() if now_s is None else now_s
    return [name for name in named if not _is_dead(place, name, now_s)]


@contextmanager
def _held(place: StoreDir, kind: Kind) -> Iterator[BackupLock]:
    claim = BackupLock(place, kind)
    claim.renew()
    threading.Thread(target=claim.keep, name="claim", daemon=True).start()
    try:
        yield claim
    finally:
        claim.end()


def _is_dead(place: StoreDir, name: str, now_s: float) -> bool:
    if _ended_here(name):
        with suppress(StoreFailed):
            place.remove(name)
        return True
    try:
        return float(json.loads(place.read(name))["until_s"]) + SKEW_S < now_s
    except NotFound:
        return True
    except (ValueError, KeyError, TypeError):
        return False  # its writer is unknown, and may be alive


def _ended_here(name: str) -> bool:
    """Whether a lock belongs to a dead process of this machine."""
    _, _, rest = name.rsplit("/", 1)[-1].partition("-")
    host, pid, *_ = [*rest.rsplit("-", 2), ""]
    return (
        host == _host() and pid.isdigit() and not os.path.exists(f"/proc/{pid}") and os.path.exists("/proc")
    )


def _host() -> str:
    """Name this machine and boot: after a reboot, or in another container, the name differs."""
    name = "".join(c if c.isalnum() else "." for c in socket.gethostname())[:40] or "host"
    return f"{name}.{_boot()}"


def _boot() -> str:
    parts = []
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            parts.append(os.readlink(file) if "ns" in file else Path(file).read_text()[:8])
    return "".join(c for c in "".join(parts) if c.isalnum())[-24:]
