"""Records which samples every committed step used, and where the time went.

Input: each committed step, with the digest that those who read the samples added up. Output: `ledger` records
in the journal, several steps each (docs/formats/ledger.md). A step is committed once every process has told
the others that its gradients are complete: from then on it happens on all that live.

All processes keep the last steps in memory. When the one that writes dies, another finds in the journal how
far it came and writes the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from windlass.corpus.batches import DIGEST_BITS
from windlass.spec.errors import ProcessFailed
from windlass.train.event_log import EventLog

WRITE_EVERY_S = 1.0
MAX_STEPS = 256
"""Of one record, and so of what a survivor must remember."""

PHASES = ("compute", "communication", "data", "checkpoint", "evaluation", "control")


class Superseded(ProcessFailed):
    """Another generation goes on with the run; this one does not know it yet."""


@dataclass(frozen=True)
class LedgerEntry:
    """Steps that were committed together: how many were finished before and after, and their positions.

    It is one step, save where replicas walk apart and agree only now and then.
    """

    before: int
    step: int
    first: int
    until: int
    digest: int


class SampleLedger:
    """The ledger of one process. Everybody keeps it, only rank 0's record writes it."""

    def __init__(self, record: EventLog, generation: int = 0) -> None:
        self._record, self._generation = record, generation
        self.guard: Callable[[int], None] = _unguarded
        """Asked before anything is written, with the generation that writes; raises Superseded."""
        self._at = (0, 0)
        self._open: list[LedgerEntry] = []
        self._recent: deque[LedgerEntry] = deque(maxlen=2 * MAX_STEPS)
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._wrote_at = -WRITE_EVERY_S

    def spend(self, phase: str, seconds: float) -> None:
        self._spent[phase] += seconds

    def begin(self, step: int, samples: int) -> None:
        """Go on from a state; what follows is counted from there."""
        self._at = (step, samples)

    def commit(self, step: int, samples: int, digest: int) -> None:
        """Remember that the run has come to a state; several steps are written together."""
        entry = LedgerEntry(self._at[0], step, self._at[1], samples, digest)
        self._at = (step, samples)
        self._open.append(entry)
        self._recent.append(entry)
        if len(self._open) >= MAX_STEPS or time.monotonic() - self._wrote_at >= WRITE_EVERY_S:
            self.write()

    def write(self, *, durable: bool = False) -> None:
        """Write what is not written yet; `durable` waits for the disk."""
        self._wrote_at = time.monotonic()
        if self._open:
            self.check()
            first, last = self._open[0], self._open[-1]
            self._record.tell(
                "ledger",
                quiet=True,
                durable=durable,
                generation=self._generation,
                steps=[first.before, last.step],
                samples=[first.first, last.until],
                digest=sum(entry.digest for entry in self._open) % (1 << DIGEST_BITS),
                spent={phase: round(seconds, 4) for phase, seconds in self._spent.items()},
            )
            self._open = []
            self._spent = dict.fromkeys(PHASES, 0.0)

    def check(self) -> None:
        """Refuse to go on for a generation that another has taken the place of."""
        if self._record.keeps:
            self.guard(self._generation)

    def recent(self) -> list[list[int]]:
        """Return the last steps as plain numbers, for a successor."""
        return [[e.before, e.step, e.first, e.until, e.digest] for e in self._recent]

    def succeed(self, generation: int, known: Iterable[Sequence[int]], *, written: int, step: int) -> None:
        """Be the ledger of another generation, which begins at `step`.

        The last writer's records reached `written` steps; `known` are the entries that any survivor
        remembers, of which the ones in between are written first.
        """
        entries = {entry.step: entry for entry in (LedgerEntry(*numbers) for numbers in known)}
        self._open = [entries[n] for n in sorted(entries) if written < n <= step]
        self._recent = deque((entries[n] for n in sorted(entries) if n <= step), maxlen=2 * MAX_STEPS)
        self._generation = generation
        self.write()
        self._wrote_at = -WRITE_EVERY_S  # the first step shows that the generation works


def _unguarded(_generation: int) -> None:
    """Nobody else can go on with this run."""
