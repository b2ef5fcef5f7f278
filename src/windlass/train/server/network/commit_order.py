"""The ledger of a run whose updates are not committed in the order of their samples.

The ledger records contiguous positions from the first on. So updates are entered once no earlier sample is
missing and a batch is complete: singly in synchronous mode; in other modes several at a time, at a boundary
at the latest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.event_log import EventLog
from windlass.train.ledger import SampleLedger
from windlass.train.server.updates import ServerUpdate, digest_of

REMEMBERED = 32
"""Updates from whose staleness that of the next ones is estimated."""


class CommitOrder:
    """Enters committed updates into the ledger in order, and keeps statistics of their staleness."""

    def __init__(self, record: EventLog, folder: Path, batch_sequences: int) -> None:
        self.ledger = SampleLedger(record)
        self.stale: Counter[int] = Counter()
        self._lately: deque[int] = deque((0,), maxlen=REMEMBERED)
        self._folder, self._size = folder, batch_sequences
        self._open: list[ServerUpdate] = []
        self._at = 0

    def begin(self, samples: int, updates: Sequence[ServerUpdate]) -> None:
        """Resume after a checkpoint at `samples`; the ledger may lack the last of the `updates` since."""
        known = min(reached(self._folder), (samples + sum(u.positions for u in updates)) // self._size)
        self._at = known * self._size
        self.ledger.begin(known, self._at)
        for update in updates:
            self.enter(update, known=update.until <= self._at)

    @property
    def updates(self) -> int:
        """Number of updates in this process."""
        return self.stale.total()

    @property
    def lately(self) -> float:
        """Mean staleness of the last updates."""
        return mean(self._lately)

    def enter(self, update: ServerUpdate, *, known: bool = False) -> None:
        self.stale[update.stale] += 1
        self._lately.append(update.stale)
        if known:
            return
        self._open.append(update)
        until = max(one.until for one in self._open)
        whole = self._at + sum(one.positions for one in self._open) == until  # no earlier one is missing
        if whole and until % self._size == 0:
            self.ledger.commit(until // self._size, until, digest_of(one.digest for one in self._open))
            self._open, self._at = [], until


def reached(folder: Path) -> int:
    """Return the last step in a run's ledger, less those that a resume has undone."""
    step = 0
    for record in Journal(StoreDir(folder), JOURNAL).read():
        if record.get("event") == "ledger":
            step = int(record["steps"][1])
        elif record.get("event") in ("resumed", "settled"):
            step = min(step, int(record["step"]))
    return step
