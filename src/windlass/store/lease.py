"""Leader election through nothing but a store: one algorithm (LeaseCandidate), here over files.

    epoch-000007.json   {epoch, holder, address}: created once, by the new leader
    beat-000007         a counter that its holder changes while it lives; "resigned" when it resigns

A candidate claims the next epoch after the counter has stood still for STALE_S on the candidate's own
monotonic clock, so clocks are never compared and need not agree. Creating an epoch is exclusive
(`StoreDir.create`): of several candidates one succeeds. A holder that sees a higher epoch has lost. Between
the claim and that moment two processes may believe that they lead; so every message of a leader carries its
epoch, and receivers obey the higher one. The files are docs/formats/lease.md.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass

from windlass.spec.errors import NotFound
from windlass.store.store_dir import StoreDir, translate_os_errors

BEAT_S = 0.25
STALE_S = 1.0
ABSTAIN_S = 3.0
"""After resigning: a leader that resigned because it was cut off must not be the first to claim again."""
RESIGNED = b"resigned"


@dataclass(frozen=True)
class LeaseClaim:
    """The leader, its epoch, and the address at which it listens."""

    epoch: int
    holder: str
    address: str


def leader(place: StoreDir) -> LeaseClaim | None:
    """Return the newest claim, whether or not its holder lives."""
    epochs = [name for name in place.names() if name.startswith("epoch-")]
    try:
        return LeaseClaim(**json.loads(place.read(max(epochs)))) if epochs else None
    except NotFound:
        return None  # an object store may list what it does not show yet


def vacate(place: StoreDir, holder: str) -> None:
    """Release the lease of a holder that is known to be dead, so that candidates need not wait."""
    found = leader(place)
    if found is not None and found.holder == holder:
        _mark(place, found.epoch, RESIGNED)


@dataclass(frozen=True)
class LeaseState:
    """What a candidate sees of a lease: the newest epoch (0: none yet), and the counter of its holder."""

    epoch: int
    counter: int | bytes
    released: bool
    """Whether it may be claimed at once: there was no holder yet, or it has resigned."""


class LeaseCandidate(ABC):
    """One candidate's view of a lease in any store. Call `step` a few times a second."""

    def __init__(self, *, stale_s: float, beat_s: float = 0.0, abstain_s: float = 0.0) -> None:
        self._stale_s, self._beat_s, self._abstain_s = stale_s, beat_s, abstain_s
        self.epoch: int | None = None
        """The epoch that this candidate holds; None while it does not lead."""
        self._acted_s = self._held_s = self._abstain_until_s = float("-inf")
        self._seen: LeaseState | None = None
        """What was seen last, unchanged since `_seen_s`."""
        self._seen_s = 0.0

    def step(self, now_s: float) -> bool:
        """Send a heartbeat if this candidate leads, else claim a vacant lease; return whether it leads."""
        if now_s - self._acted_s < self._beat_s:
            return self.epoch is not None
        self._acted_s = now_s
        if self.epoch is not None:
            self.epoch = self.epoch if self._beat(self.epoch) else None
        elif now_s >= self._abstain_until_s:
            self.epoch = self._claim_vacant(now_s)
        if self.epoch is not None:
            self._held_s = now_s
        return self.epoch is not None

    def holds(self, now_s: float) -> bool:
        """Whether no other candidate can lead yet; false once the last heartbeat is stale."""
        return self.epoch is not None and now_s - self._held_s < self._stale_s

    def resign(self, now_s: float) -> None:
        """Release the lease, so that others need not wait, and make no claim for a while."""
        if self.epoch is not None:
            self._release(self.epoch)
        self.epoch = None
        self._abstain_until_s = now_s + self._abstain_s

    def _claim_vacant(self, now_s: float) -> int | None:
        state = self._read()
        if state != self._seen:
            self._seen, self._seen_s = state, now_s
        if not state.released and now_s - self._seen_s < self._stale_s:
            return None
        return self._claim(state)

    @abstractmethod
    def _read(self) -> LeaseState: ...

    @abstractmethod
    def _claim(self, state: LeaseState) -> int | None:
        """Create the next epoch, unless another candidate was first; return it."""

    @abstractmethod
    def _beat(self, epoch: int) -> bool:
        """Change the counter; return whether the epoch is still the newest."""

    @abstractmethod
    def _release(self, epoch: int) -> None: ...


class Lease(LeaseCandidate):
    """A candidate for a lease in a store; its steps never wait."""

    def __init__(self, place: StoreDir, holder: str, address: str) -> None:
        super().__init__(stale_s=STALE_S, beat_s=BEAT_S, abstain_s=ABSTAIN_S)
        self._place, self._holder, self._address = place, holder, address
        self._count = 0

    def _read(self) -> LeaseState:
        newest = leader(self._place)
        if newest is None:
            return LeaseState(0, b"", released=True)
        counter = self._counter(newest.epoch)
        return LeaseState(newest.epoch, counter, released=counter == RESIGNED)

    def _claim(self, state: LeaseState) -> int | None:
        epoch = state.epoch + 1
        claim = LeaseClaim(epoch, self._holder, self._address)
        if not self._place.create(f"epoch-{epoch:06d}.json", json.dumps(asdict(claim)).encode()):
            return None
        self._count_up(epoch)
        return epoch

    def _beat(self, epoch: int) -> bool:
        newest = leader(self._place)
        if newest is not None and newest.epoch > epoch:
            return False
        self._count_up(epoch)
        return True

    def _release(self, epoch: int) -> None:
        _mark(self._place, epoch, RESIGNED)

    def _count_up(self, epoch: int) -> None:
        self._count += 1
        _mark(self._place, epoch, b"%016d" % self._count)

    def _counter(self, epoch: int) -> bytes:
        try:
            return self._place.read(f"beat-{epoch:06d}")
        except NotFound:
            return b""


def _mark(place: StoreDir, epoch: int, content: bytes) -> None:
    """Write without fsync: other processes read the file through the same file system."""
    name, folder = f"beat-{epoch:06d}", place.local
    if folder is None:
        place.write(name, content)
        return
    with translate_os_errors(str(folder / name)):
        (folder / name).write_bytes(content)
