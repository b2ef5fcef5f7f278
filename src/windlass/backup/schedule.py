"""Makes and prunes snapshots at intervals, and survives failures.

    wait until due -> make -> prune -> journal -> ...

The next snapshot is due one interval after the newest one in the store, so a restarted schedule neither
hurries nor skips. Between snapshots it records in the store when the home last changed: after a total loss,
this shows how much is missing. A failure is journalled, and retried with exponential back-off.

    HOME/backup/journal.jsonl   events
    HOME/backup/metrics.prom    metrics, for Prometheus' text file collector
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.backup.contents import FOLDER, newest_write_s
from windlass.backup.make import BackupOptions, make
from windlass.backup.prune import prune
from windlass.backup.repository import BackupRepository
from windlass.backup.snapshot import moment
from windlass.spec.backup import Keep
from windlass.spec.errors import WindlassError
from windlass.spec.protocol.backoff import Backoff
from windlass.spec.protocol.progress import Report, silent
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

LOOK_EVERY_S = 30.0
BACKOFF = Backoff(first_s=5.0, max_s=600.0)
METRICS = "metrics.prom"
HELP = {
    "last_success_timestamp_seconds": "when the newest snapshot was begun",
    "last_duration_seconds": "how long the last snapshot took",
    "last_sent_bytes": "bytes that the last snapshot sent",
    "snapshots": "snapshots in the store",
    "made_total": "snapshots made since the schedule was started",
    "failures_total": "attempts that failed since the schedule was started",
    "failing": "attempts that failed since the last success",
}


@dataclass
class BackupSchedule:
    """Backs up a home every `every_s` seconds. `step` does not raise if the store or the disk fails."""

    home: Path
    open_repository: Callable[[], BackupRepository]
    every_s: float
    keep: Keep
    options: BackupOptions
    report: Report = silent
    say: Callable[[str], None] = lambda _: None
    figures: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HELP, 0.0))
    _again_at_s: float = 0.0

    def step(self, now_s: float) -> float:
        """Make a snapshot if one is due; return the seconds until the next step."""
        try:
            repository = self.open_repository()
            due_s = self._due_s(repository)
            if now_s < max(due_s, self._again_at_s):
                repository.see(newest_write_s=newest_write_s(self.home), at_s=now_s, every_s=self.every_s)
            else:
                self._make(repository)
                due_s = self._due_s(repository)
            return max(0.0, min(LOOK_EVERY_S, due_s - now_s))
        except (WindlassError, OSError) as error:
            return self._failed(error, now_s)

    def _due_s(self, repository: BackupRepository) -> float:
        ids = repository.ids()
        self.figures["snapshots"] = len(ids)
        return moment(ids[-1]) + self.every_s if ids else 0.0

    def _make(self, repository: BackupRepository) -> None:
        repository.see(every_s=self.every_s)
        made = make(self.home, repository, self.options, self.report)
        pruned = prune(repository, self.keep)
        self.figures |= {
            "last_success_timestamp_seconds": made.snapshot.made_s,
            "last_duration_seconds": made.seconds,
            "last_sent_bytes": made.sent.sent_bytes,
            "failing": 0.0,
        }
        self.figures["made_total"] += 1
        facts = made.facts()
        self._journal({"event": "made", **facts, "forgotten": list(pruned.forgotten)})
        self.say(f"snapshot {made.snapshot.id}: {facts['files']} files, {facts['sent_bytes']} bytes sent")

    def _failed(self, error: Exception, now_s: float) -> float:
        self.figures["failures_total"] += 1
        self.figures["failing"] += 1
        wait_s = BACKOFF.wait_s(int(self.figures["failing"]), random.random())
        self._again_at_s = now_s + wait_s
        message = error.message if isinstance(error, WindlassError) else str(error)
        self._journal({"event": "failed", "message": message, "again_in_s": round(wait_s, 1)})
        self.say(f"failed: {message}; next attempt in {wait_s:.0f} s")
        return wait_s

    def _journal(self, record: dict[str, Any]) -> None:
        """Write the journal and the metrics; a full disk must not end the schedule."""
        place = StoreDir(self.home / FOLDER)
        try:
            Journal(place).append({"time": round(time.time(), 3), **record})
            place.write(METRICS, exposition(self.figures).encode())
        except WindlassError as error:
            self.say(f"the journal could not be written: {error.message}")


def exposition(figures: dict[str, float]) -> str:
    """Return the metrics in Prometheus' text format."""
    lines = []
    for name, about in HELP.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        full = f"windlass_backup_{name}"
        lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}", f"{full} {figures[name]:.17g}"]
    return "\n".join(lines) + "\n"
