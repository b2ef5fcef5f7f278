"""Forgets snapshots that need not stay, and chunks that none lists any more.

Snapshots go before chunks, so none is ever without what it lists. Chunks go only while nobody makes or
restores a snapshot (locks.py): what a backup under way relies on may be listed by nothing yet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from windlass.backup.locks import pruning
from windlass.backup.repository import Vault
from windlass.backup.retention import kept
from windlass.backup.snapshot import moment
from windlass.spec.backup import Keep
from windlass.spec.protocol.progress import Progress, Report, silent


@dataclass(frozen=True)
class Pruned:
    """What went."""

    forgotten: tuple[str, ...]
    kept: tuple[str, ...]
    chunks: int
    freed_bytes: int
    waits: bool
    """Whether chunks were left for the next time, because somebody is at work."""

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def prune(vault: Vault, keep: Keep, report: Report = silent, *, dry_run: bool = False) -> Pruned:
    """Forget what need not stay. The newest snapshot always stays."""
    ids = vault.ids()
    stays = kept([moment(id_) for id_ in ids], keep)
    gone = [id_ for id_ in ids if moment(id_) not in stays]
    left = tuple(id_ for id_ in ids if id_ not in gone)
    if dry_run:
        return Pruned(tuple(gone), left, 0, 0, waits=False)
    for id_ in gone:
        vault.forget(id_)
    with pruning(vault.place) as is_alone:
        chunks, freed = _sweep(vault, report) if is_alone else (0, 0)
    return Pruned(tuple(gone), left, chunks, freed, waits=not is_alone)


def _sweep(vault: Vault, report: Report) -> tuple[int, int]:
    """Remove chunks that no snapshot lists. One that cannot be read stops it: what it lists is unknown."""
    held = vault.chunks()
    listed: set[str] = set()
    for id_ in vault.ids():
        listed |= vault.read(id_).chunks
    unlisted = sorted(set(held) - listed)
    freed = 0
    for number, name in enumerate(unlisted, 1):
        vault.drop([name])
        freed += held[name]
        report(Progress("prune", number, len(unlisted), "chunks"))
    return len(unlisted), freed
