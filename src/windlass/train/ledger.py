"""Records which samples every committed step used, and where the time went.

Input: each committed step, with the digest of its samples summed over the ranks that read them. Output:
`ledger` records in the journal, several steps each (docs/formats/ledger.md). A step is committed once every
rank has confirmed that its gradients are complete: from then on all surviving ranks apply it.

All ranks keep the last steps in memory. If the writing rank dies, another rank finds the last entry in the
journal and writes the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from windlass.corpus.batches import DIGEST_BITS
from windlass.spec.errors import ProcessFailed
from windlass.train.event_log import EventLog

WRITE_EVERY_S = 1.0
MAX_STEPS = 256
"""Maximum steps of one record, and so of what a surviving rank must remember."""

PHASES = ("compute", "communication", "data", "checkpoint", "evaluation", "control")


class Superseded(ProcessFailed):
    """A newer generation continues the run; this one must not write."""


@dataclass(frozen=True)
class LedgerEntry:
    """Steps that were committed together: step numbers before and after, and their positions.

    It is one step, except where replicas train locally between syncs.
    """

    before: int
    step: int
    first: int
    until: int
    digest: int


class SampleLedger:
    """The ledger of one process. Every rank keeps it; only rank 0 writes it."""

    def __init__(self, record: EventLog, generation: int = 0) -> None:
        self._record, self._generation = record, generation
        self.guard: Callable[[int], None] = _unguarded
        """Called with the writing generation before every write; raises Superseded if there is a newer
        one."""
        self._at = (0, 0)
        self._open: list[LedgerEntry] = []
        self._recent: deque[LedgerEntry] = deque(maxlen=2 * MAX_STEPS)
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._wrote_at = -WRITE_EVERY_S

    def spend(self, phase: str, seconds: float) -> None:
        self._spent[phase] += seconds

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the block to a phase, also if it fails."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.spend(phase, time.perf_counter() - begin)

    def begin(self, step: int, samples: int) -> None:
        """Start counting from a state."""
        self._at = (step, samples)

    def commit(self, step: int, samples: int, digest: int) -> None:
        """Add an entry up to this state; several entries are written together."""
        entry = LedgerEntry(self._at[0], step, self._at[1], samples, digest)
        self._at = (step, samples)
        self._open.append(entry)
        self._recent.append(entry)
        if len(self._open) >= MAX_STEPS or time.monotonic() - self._wrote_at >= WRITE_EVERY_S:
            self.write()

    def write(self, *, durable: bool = False) -> None:
        """Write the open entries; `durable` waits for the disk."""
        self._wrote_at = time.monotonic()
        if self._open:
            self.check()
            first, last = self._open[0], self._open[-1]
            self._record.emit(
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

    def flush(self) -> None:
        """Write all entries to disk before a checkpoint, which must not be ahead of them."""
        self.check()
        self.write(durable=True)

    def check(self) -> None:
        """Raise Superseded if a newer generation has taken over."""
        if self._record.keeps:
            self.guard(self._generation)

    def recent(self) -> list[list[int]]:
        """Return the last steps as plain numbers, for a successor."""
        return [[e.before, e.step, e.first, e.until, e.digest] for e in self._recent]

    def succeed(self, generation: int, known: Iterable[Sequence[int]], *, written: int, step: int) -> None:
        """Continue as the ledger of another generation, which begins at `step`.

        The last writer's records reach step `written`; `known` are the entries that the survivors remember,
        of which those in between are written first.
        """
        entries = {entry.step: entry for entry in (LedgerEntry(*numbers) for numbers in known)}
        self._open = [entries[n] for n in sorted(entries) if written < n <= step]
        self._recent = deque((entries[n] for n in sorted(entries) if n <= step), maxlen=2 * MAX_STEPS)
        self._generation = generation
        self.write()
        self._wrote_at = -WRITE_EVERY_S  # the first step shows that the generation works


def _unguarded(_generation: int) -> None:
    """The default: no other generation can exist."""
