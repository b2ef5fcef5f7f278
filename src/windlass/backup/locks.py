"""Who is at work on a backup, so that nothing goes away under anybody.

    claims/make-HOST-PID-....json   {"until_s"}: renewed while its holder lives

Making and restoring rely on chunks that are there; pruning takes away those that no snapshot lists. Each
first writes its claim and then looks for the other kind, so of two that begin at once at least one sees the
other: pruning steps back, the others wait. A claim that was not renewed for so long that no clock explains
it is dead; one of a process of this machine that has ended is dead at once.
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
"""Clocks of two machines are believed to differ by less than this."""
LOOK_AGAIN_S = 1.0


class BackupLock:
    """One holder's claim; `is_good` tells whether the others must still respect it."""

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
        with suppress(StoreFailed):  # it runs out by itself
            self._place.remove(self.name)

    def keep(self) -> None:
        """Renew it until it ends. What fails is tried again at the next turn."""
        while not self._ended.wait(RENEW_S):
            with suppress(StoreFailed):
                self.renew()


@contextmanager
def claimed(place: StoreDir, kind: Kind, *, patience_s: float = 60.0) -> Iterator[BackupLock]:
    """Hold a claim to rely on chunks, once nobody prunes; raise InUse if that takes too long."""
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
    """Hold the claim to take chunks away; say whether nobody relies on them."""
    with _held(place, "prune"):
        yield not others(place, ("make", "read"))


@contextmanager
def alone(place: StoreDir, kind: Kind, what: str) -> Iterator[None]:
    """Hold a claim that only one may have; of two that try at once, one at least is refused."""
    with _held(place, kind) as claim:
        rivals = [name for name in others(place, (kind,)) if name != claim.name]
        if rivals:
            who = rivals[0].rsplit("/", 1)[-1].removesuffix(".json")
            raise InUse(f"{what} is in use by {who}", hint="wait for it, or stop it first")
        yield


def others(place: StoreDir, kinds: tuple[Kind, ...], now_s: float | None = None) -> list[str]:
    """List the live claims of some kinds."""
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
        return False  # who wrote it is unknown, and may live


def _ended_here(name: str) -> bool:
    """Tell whether a claim is of a process of this machine that is no more."""
    _, _, rest = name.rsplit("/", 1)[-1].partition("-")
    host, pid, *_ = [*rest.rsplit("-", 2), ""]
    return (
        host == _host() and pid.isdigit() and not os.path.exists(f"/proc/{pid}") and os.path.exists("/proc")
    )


def _host() -> str:
    """This machine as long as it is up: another boot, or another container, is another one."""
    name = "".join(c if c.isalnum() else "." for c in socket.gethostname())[:40] or "host"
    return f"{name}.{_boot()}"


def _boot() -> str:
    parts = []
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            parts.append(os.readlink(file) if "ns" in file else Path(file).read_text()[:8])
    return "".join(c for c in "".join(parts) if c.isalnum())[-24:]
