"""Deletes snapshots by the retention policy, and chunks that no snapshot lists.

Snapshots are deleted before chunks, so a snapshot never lacks a chunk. Chunks are deleted only while no
process makes or restores a snapshot (`locks`): a backup in progress uses chunks that no snapshot lists yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from windlass.backup.locks import pruning
from windlass.backup.repository import BackupRepository
from windlass.backup.snapshot import moment
from windlass.spec.backup import Keep
from windlass.spec.protocol.progress import Progress, Report, silent


@dataclass(frozen=True)
class Pruned:
    """What was deleted."""

    forgotten: tuple[str, ...]
    kept: tuple[str, ...]
    chunks: int
    freed_bytes: int
    waits: bool
    """Whether chunks were left for the next time, because a backup or a restore is in progress."""

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def prune(
    repository: BackupRepository, keep: Keep, report: Report = silent, *, dry_run: bool = False
) -> Pruned:
    """Delete snapshots by the policy `keep`. The newest snapshot always stays."""
    ids = repository.ids()
    stays = kept([moment(id_) for id_ in ids], keep)
    gone = [id_ for id_ in ids if moment(id_) not in stays]
    left = tuple(id_ for id_ in ids if id_ not in gone)
    if dry_run:
        return Pruned(tuple(gone), left, 0, 0, waits=False)
    for id_ in gone:
        repository.forget(id_)
    with pruning(repository.place) as is_alone:
        chunks, freed = _sweep(repository, report) if is_alone else (0, 0)
    return Pruned(tuple(gone), left, chunks, freed, waits=not is_alone)


def kept(moments: Iterable[float], keep: Keep) -> set[float]:
    """Return the times of the snapshots to keep.

    Days, weeks (from Monday) and months are in UTC, and only those with snapshots count, newest first: a
    machine that was off for a month loses no snapshot by it.
    """
    newest_first = sorted(set(moments), reverse=True)
    stays = set(newest_first[: keep.last])
    for count, form in ((keep.daily, "%Y-%m-%d"), (keep.weekly, "%G-%V"), (keep.monthly, "%Y-%m")):
        seen: list[str] = []
        for at_s in newest_first:
            period = datetime.fromtimestamp(at_s, UTC).strftime(form)
            if period not in seen and len(seen) < count:
                seen.append(period)
                stays.add(at_s)
    return stays


def _sweep(repository: BackupRepository, report: Report) -> tuple[int, int]:
    """Delete chunks that no snapshot lists. An unreadable snapshot stops it: its chunks are unknown."""
    held = repository.chunks()
    listed: set[str] = set()
    for id_ in repository.ids():
        listed |= repository.read(id_).chunks
    unlisted = sorted(set(held) - listed)
    freed = 0
    for number, name in enumerate(unlisted, 1):
        repository.drop([name])
        freed += held[name]
        report(Progress("prune", number, len(unlisted), "chunks"))
    return len(unlisted), freed
