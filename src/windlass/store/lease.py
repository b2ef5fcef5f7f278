"""Leader election through nothing but a store.

    epoch-000007.json   {epoch, holder, address}: created once, by the new leader beat-000007         a
    counter that its holder changes while it lives; "resigned" when it releases the lease

A candidate claims the next epoch after the counter has stood still for STALE_S on the candidate's own
monotonic clock, so clocks are never compared and need not agree. Creating an epoch is exclusive
(`StoreDir.create`): of several candidates one succeeds. A holder that sees a higher epoch has lost. Between
the claim and that moment two processes may believe that they lead; so every message of a leader carries its
epoch, and receivers obey the higher one. The files are docs/formats/lease.md.
"""

from __future__ import annotations

import json
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


class Lease:
    """One candidate's view of a lease. Call `step` a few times a second; it never waits."""

    def __init__(self, place: StoreDir, holder: str, address: str) -> None:
        self._place, self._holder, self._address = place, holder, address
        self.epoch: int | None = None
        """The epoch that this candidate holds; None while it does not lead."""
        self._count = 0
        self._acted_s = -BEAT_S
        self._seen: tuple[int, bytes] | None = None
        """The newest epoch and its counter, unchanged since `_seen_s`."""
        self._seen_s = 0.0
        self._abstain_until_s = float("-inf")

    def step(self, now_s: float) -> bool:
        """Send a heartbeat if this candidate leads, else claim a vacant lease; return whether it leads."""
        if now_s - self._acted_s < BEAT_S:
            return self.epoch is not None
        self._acted_s = now_s
        newest = leader(self._place)
        if self.epoch is not None:
            if newest is not None and newest.epoch > self.epoch:
                self.epoch = None
            else:
                self._beat()
        elif now_s >= self._abstain_until_s and self._vacant(newest, now_s):
            self._claim(newest.epoch + 1 if newest is not None else 1)
        return self.epoch is not None

    def resign(self, now_s: float) -> None:
        """Release the lease, so that others need not wait, and make no claim for a while."""
        if self.epoch is not None:
            _mark(self._place, self.epoch, RESIGNED)
        self.epoch = None
        self._abstain_until_s = now_s + ABSTAIN_S

    def _vacant(self, newest: LeaseClaim | None, now_s: float) -> bool:
        if newest is None:
            return True
        seen = (newest.epoch, self._counter(newest.epoch))
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        return seen[1] == RESIGNED or now_s - self._seen_s >= STALE_S

    def _claim(self, epoch: int) -> None:
        claim = LeaseClaim(epoch, self._holder, self._address)
        if self._place.create(f"epoch-{epoch:06d}.json", json.dumps(asdict(claim)).encode()):
            self.epoch = epoch
            self._beat()

    def _beat(self) -> None:
        assert self.epoch is not None
        self._count += 1
        _mark(self._place, self.epoch, b"%016d" % self._count)

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
