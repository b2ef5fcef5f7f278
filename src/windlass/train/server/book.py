"""The ledger of a run whose batches are not committed in their order.

The ledger says which positions a number of steps used, from the first on. So updates are entered where none
of the batches before them is missing: one by one in synchronous mode, in the others several at a time, at a
border at the latest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.place import Place
from windlass.train.ledger import Ledger
from windlass.train.record import Record
from windlass.train.server.updates import Update, digest_of

REMEMBERED = 32
"""Updates whose staleness says how stale the next ones will be."""


class Book:
    """What was committed, for the ledger and for whoever wants to know how stale it was."""

    def __init__(self, record: Record, folder: Path, batch_sequences: int) -> None:
        self.ledger = Ledger(record)
        self.stale: Counter[int] = Counter()
        self._lately: deque[int] = deque((0,), maxlen=REMEMBERED)
        self._folder, self._size = folder, batch_sequences
        self._open: list[Update] = []

    def begin(self, step: int, updates: Sequence[Update]) -> None:
        """Go on at `step`; `updates` are those since a checkpoint, of which the ledger may lack the last."""
        known = min(reached(self._folder), step)
        self.ledger.begin(known, known * self._size)
        for update in updates:
            self.enter(update, known=update.number <= known)

    @property
    def lately(self) -> float:
        """How stale the last updates were, on average."""
        return mean(self._lately)

    def enter(self, update: Update, *, known: bool = False) -> None:
        self.stale[update.stale] += 1
        self._lately.append(update.stale)
        if known:
            return
        self._open.append(update)
        if max(one.batch for one in self._open) + 1 == update.number:  # so none before it is missing
            digest = digest_of(one.digest for one in self._open)
            self.ledger.commit(update.number, update.number * self._size, digest)
            self._open = []


def reached(folder: Path) -> int:
    """Return the step that the ledger of a run has come to and was not taken back from."""
    step = 0
    for record in Journal(Place(folder), JOURNAL).read():
        if record.get("event") == "ledger":
            step = int(record["steps"][1])
        elif record.get("event") in ("resumed", "settled"):
            step = min(step, int(record["step"]))
    return step
