"""Proves from a run's ledger that every sample was used exactly once per epoch, or lists the exceptions.

Input: the journal of a run, and the number of samples in its corpus. Output: a LedgerAudit. The ledger
records the positions that each step used (docs/formats/ledger.md); a roll-back undoes the steps after the
state that the run resumed from. The remaining positions must start at 0 and cover each position once. That
the positions of an epoch are different samples is checked with the permutation that training uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from windlass.corpus.batches import digest_of_range, sample_count, windows_at
from windlass.corpus.corpus_dir import load_corpus
from windlass.spec.errors import Damaged, WindlassError
from windlass.spec.run import JOURNAL, RUN_FILE, Run
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

MAX_CHECKED = 10_000_000
"""Positions whose permutation is computed: two seconds, and as many bytes."""
MAX_SAMPLED = 1_000_000
"""Positions checked of an epoch that is larger than that."""
MAX_EPOCHS = 1000
MAX_NAMED = 20
"""Gaps, repetitions and wrong digests listed one by one; the others are only counted."""


@dataclass(frozen=True)
class Use:
    """Steps (first_step, last_step] used the positions [first, until)."""

    first_step: int
    last_step: int
    first: int
    until: int
    whole: bool = True
    """False where a roll-back undid its last steps; the digest is that of the whole."""


@dataclass(frozen=True)
class Epochs:
    """The used positions as epochs over the samples of the corpus."""

    samples: int
    """Samples of one epoch."""
    whole: int
    """Completed epochs."""
    begun: int
    """Samples used of the current epoch."""
    checked: int
    """Positions that were checked to be different samples."""


@dataclass(frozen=True)
class LedgerAudit:
    """What the ledger proves."""

    samples_used: int = 0
    samples_lost: int = 0
    samples_repeated: int = 0
    steps: int = 0
    records: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    """Used positions as merged ranges [first, until]."""
    gaps: list[list[int]] = field(default_factory=list)
    repeated: list[list[int]] = field(default_factory=list)
    """Positions used more than once, [first, until, times]."""
    roll_backs: int = 0
    rolled_back: int = 0
    """Samples whose steps were rolled back; they were used again, or will be."""
    cut: int = 0
    """Records that a roll-back undid in part."""
    epochs: Epochs | None = None
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why the proof fails; empty if it holds."""

    @property
    def ok(self) -> bool:
        return not self.reasons

    def facts(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def audit(folder: Path) -> LedgerAudit:
    """Audit the run in a directory."""
    run = Run.model_validate_json(StoreDir(folder).read(RUN_FILE))
    found = audit_records(Journal(StoreDir(folder), JOURNAL).read())
    try:
        tokens = len(load_corpus(Path(run.corpus)).train)
    except WindlassError as error:
        note = f"epochs were not checked, because the corpus cannot be read: {error.message}"
        return replace(found, notes=[*found.notes, note])
    return with_epochs(found, sample_count(tokens, run.shape.context), run.job.seed)


def audit_records(records: Iterable[dict[str, Any]]) -> LedgerAudit:
    """Audit the records of a journal, oldest first."""
    reader = _LedgerReader()
    for number, record in enumerate(records, start=1):
        reader.take(number, record)
    return reader.close()


def with_epochs(
    found: LedgerAudit, samples: int, seed: int, *, max_positions: int = MAX_CHECKED
) -> LedgerAudit:
    """Add the epochs, and check that each is a permutation of the samples."""
    until = found.ranges[-1][1] if found.ranges else 0
    numbers = range(-(-until // samples))
    checked, wrong = 0, []
    looked_at = samples if samples <= max_positions else min(max_positions, MAX_SAMPLED)
    for epoch in _chosen(numbers, min(MAX_EPOCHS, max(1, max_positions // looked_at))):
        checked += looked_at
        if not _is_permutation(epoch, samples, seed, looked_at):
            wrong.append(f"epoch {epoch}: two of its positions are the same sample")
    epochs = Epochs(samples, until // samples, until % samples, checked)
    notes = list(found.notes)
    if checked < len(numbers) * samples:
        notes.append(f"the order of samples was checked at {checked} of {len(numbers) * samples} positions")
    return replace(found, epochs=epochs, notes=notes, reasons=[*found.reasons, *wrong])


class _LedgerReader:
    """The ledger so far: positions that were used and not rolled back."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._found = LedgerAudit()
        self._reasons: list[str] = []
        self._wrong: list[str] = []
        self._fresh = self._stepped = False
        self._reached = self._generation = self._stale = 0

    def take(self, number: int, record: dict[str, Any]) -> None:
        event = record.get("event")
        if event == "ledger" and int(record.get("generation", 0)) < self._generation:
            self._stale += 1
        elif event == "ledger":
            self._use(number, record)
        elif event == "started":
            self._fresh, self._generation = True, 0
        elif event in ("resumed", "settled"):
            self._fresh = False
            self._generation = max(self._generation, int(record.get("generation") or 0))
            self._roll_back(int(record["step"]), record.get("samples"))
        elif event == "step":
            self._stepped = True
        elif event in ("checkpoint", "finished"):
            self._stepped = True
            self._compare(event, int(record["step"]))

    def close(self) -> LedgerAudit:
        """Return the audit of all records."""
        if not self._uses and self._stepped and not self._found.records:
            self._reasons.append("the run kept no ledger, so nothing can be shown about its samples")
        ranges, gaps, repeated = _covered(self._uses)
        reasons = self._reasons + _few(self._wrong)
        reasons += _few([f"positions {p} to {q - 1} were not used ({q - p} samples)" for p, q in gaps])
        reasons += _few([f"positions {p} to {q - 1} were used {n} times" for p, q, n in repeated])
        reasons += _few(list(_unchained(self._uses)))
        stale = f"{self._stale} records of members that had been replaced do not count"
        return replace(
            self._found,
            samples_used=sum(q - p for p, q in ranges),
            samples_lost=sum(q - p for p, q in gaps),
            samples_repeated=sum((q - p) * (n - 1) for p, q, n in repeated),
            steps=self._step,
            ranges=ranges,
            gaps=gaps,
            repeated=repeated,
            cut=sum(not use.whole for use in self._uses),
            notes=[stale] if self._stale else [],
            reasons=reasons,
        )

    @property
    def _step(self) -> int:
        return max((use.last_step for use in self._uses), default=0)

    def _use(self, number: int, record: dict[str, Any]) -> None:
        (a, b), (p, q) = record["steps"], record["samples"]
        if not (0 <= a < b and 0 <= p < q):
            raise Damaged(f"record {number} of the journal: steps {a} to {b} cannot use samples {p} to {q}")
        if self._fresh and a == 0:
            self._roll_back(0, 0)  # a start without a state to resume from begins at step 0
        self._fresh = False
        self._found = replace(self._found, records=self._found.records + 1)
        if digest_of_range(p, q) != record["digest"]:
            place = f"generation {record['generation']}, steps {a + 1} to {b}"
            self._wrong.append(f"{place}: what was read is not positions {p} to {q - 1}, by its digest")
        self._uses.append(Use(a, b, p, q))
        self._reached = max(self._reached, b)

    def _roll_back(self, step: int, samples: int | None) -> None:
        """Undo the uses after a state; older journals record its step only."""
        kept = [left for use in self._uses if (left := _cut_back(use, step, samples)) is not None]
        undone = sum(use.until - use.first for use in self._uses) - sum(u.until - u.first for u in kept)
        self._uses = kept
        if undone:
            before = self._found
            self._found = replace(
                before, roll_backs=before.roll_backs + 1, rolled_back=before.rolled_back + undone
            )

    def _compare(self, event: str, step: int) -> None:
        """A checkpoint must follow the ledger record of its step, and the end of the run all records."""
        finished = event == "finished"
        known = self._step if finished else self._reached
        if self._found.records and (step > known or (finished and step < known)):
            what = "the run is finished" if finished else "there is a checkpoint"
            self._reasons.append(f"{what} at step {step}, but the ledger knows of {known} steps")


def _cut_back(use: Use, step: int, samples: int | None) -> Use | None:
    """Return the part of a use that a roll-back keeps; None if it keeps nothing."""
    if samples is None:
        each = (use.until - use.first) / (use.last_step - use.first_step)
        samples = use.first + round(each * max(0, step - use.first_step))
    if use.until <= samples:
        return use
    if use.first >= samples:
        return None
    return replace(use, last_step=max(step, use.first_step + 1), until=samples, whole=False)


def _covered(uses: Iterable[Use]) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return the used positions, the gaps between them, and the repeated positions."""
    changes: dict[int, int] = {0: 0}
    for use in uses:
        changes[use.first] = changes.get(use.first, 0) + 1
        changes[use.until] = changes.get(use.until, 0) - 1
    ranges: list[list[int]] = []
    gaps: list[list[int]] = []
    repeated: list[list[int]] = []
    times = 0
    for first, until in pairwise(sorted(changes)):
        times += changes[first]
        _extend(ranges if times else gaps, [first, until])
        if times > 1:
            _extend(repeated, [first, until, times])
    return ranges, gaps, repeated


def _extend(ranges: list[list[int]], more: list[int]) -> None:
    """Append a range, merged with the last one if it continues that."""
    if ranges and ranges[-1][1] == more[0] and ranges[-1][2:] == more[2:]:
        ranges[-1][1] = more[1]
    else:
        ranges.append(more)


def _unchained(uses: Iterable[Use]) -> Iterator[str]:
    """Yield places where positions are consecutive but the steps that used them are not."""
    for one, other in pairwise(sorted(uses, key=lambda use: (use.first, use.until))):
        if one.until == other.first and one.last_step != other.first_step:
            yield (
                f"position {other.first}: step {one.last_step} used the positions before it,"
                f" but the next record starts with step {other.first_step + 1}"
            )


def _few(reasons: list[str]) -> list[str]:
    more = len(reasons) - MAX_NAMED
    return reasons if more <= 0 else [*reasons[:MAX_NAMED], f"and {more} more like this"]


def _chosen(numbers: range, max_epochs: int) -> list[int]:
    """Return the epochs to check: all, or the first, the last and some in between."""
    if len(numbers) <= max_epochs:
        return list(numbers)
    return sorted({int(place) for place in np.linspace(0, len(numbers) - 1, max_epochs)})


def _is_permutation(epoch: int, samples: int, seed: int, looked_at: int) -> bool:
    """Whether the positions of an epoch are different samples: all, or `looked_at` of them."""
    if looked_at < samples:
        positions = epoch * samples + np.arange(looked_at, dtype=np.int64) * (samples // looked_at)
        windows = windows_at(positions, samples, seed)
        inside = bool(windows.min() >= 0 and windows.max() < samples)
        return inside and len(np.unique(windows)) == looked_at
    seen = np.zeros(samples, dtype=bool)
    for start in range(0, samples, 1 << 20):
        places = np.arange(start, min(samples, start + (1 << 20)), dtype=np.int64)
        windows = windows_at(epoch * samples + places, samples, seed)
        if windows.min() < 0 or windows.max() >= samples:
            return False
        seen[windows] = True
    return bool(seen.all())
