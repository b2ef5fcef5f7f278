"""The job tables of a control plane in memory: what the reconcile loop and submitters need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from windlass.control.plane.job_store import QueuePosition
from windlass.control.plane.leader_store import Transition
from windlass.control.plane.queued_job import JobEntry
from windlass.control.scheduler.snapshot import TenantQuota


class MemoryLedger:
    """A leader store of a single process, without competing leaders, that forgets finished jobs."""

    def __init__(self, shares: Mapping[str, TenantQuota]) -> None:
        self.open: dict[str, JobEntry] = {}
        self.over: Counter[str] = Counter()
        self.waits: dict[str, QueuePosition] = {}
        self.moved: Counter[str] = Counter()
        """How often jobs entered each phase."""
        self.changed_since_step = True
        self._shares = dict(shares)
        self._version = 0
        self._log: list[tuple[int, str]] = []

    def submit(self, entry: JobEntry) -> None:
        self._put(entry)

    def request_stop(self, uid: str) -> None:
        if uid in self.open:
            self._put(replace(self.open[uid], desired="stop"))

    def _put(self, entry: JobEntry) -> None:
        self._version += 1
        self.open[entry.uid] = replace(entry, version=self._version)
        self._log.append((self._version, entry.uid))
        self.changed_since_step = True

    def changed(self, after: int) -> Sequence[JobEntry]:
        fresh: dict[str, None] = {}
        while self._log and self._log[-1][0] > after:
            fresh[self._log.pop()[1]] = None
        self._log.clear()
        return sorted((self.open[uid] for uid in fresh if uid in self.open), key=lambda e: e.version)

    def apply(self, transitions: Sequence[Transition]) -> int:
        self._version += 1
        for transition in transitions:
            entry = replace(transition.entry, version=self._version)
            self.moved[entry.phase] += 1
            if entry.over:
                self.over[entry.phase] += 1
                self.open.pop(entry.uid, None)
            else:
                self.open[entry.uid] = entry
        return self._version

    def set_queue_positions(self, waits: Mapping[str, QueuePosition | None]) -> None:
        for uid, wait in waits.items():
            if wait is None:
                self.waits.pop(uid, None)
            else:
                self.waits[uid] = wait

    def shares(self) -> Mapping[str, TenantQuota]:
        return self._shares

    def set_usage(self, used: Mapping[str, float], now_s: float) -> None:
        for tenant, each in used.items():
            self._shares[tenant] = replace(self._shares.get(tenant, TenantQuota(tenant)), used=each)
