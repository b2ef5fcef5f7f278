"""A control plane as part of a process: one thread keeps the lease, one reconciles while this one leads.

The threads never end the process: what goes wrong in a step is told, and the next one begins anew from what
is written. Several such processes may share a database; all of them take requests, one acts.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windlass.cluster.backend import ClusterBackend, Group, Node, Resources
from windlass.control.plane.job_store import JobStore, open_plane
from windlass.control.plane.leader_lease import BEAT_S, DatabaseLease, LostLeadership
from windlass.control.plane.leader_store import FencedLeaderStore
from windlass.control.plane.queued_job import JobEntry
from windlass.control.plane.reconcile import Reconciler, ReconcileResult
from windlass.control.scheduler.decide import decide
from windlass.control.scheduler.snapshot import MIN_RUN_S, JobDecision, Snapshot
from windlass.control.tenants.tenant_registry import TenantRegistry
from windlass.spec.errors import WindlassError

STEP_S = 0.5
"""Between steps when nothing is asked for meanwhile."""
SHARES_EVERY_S = 2.0
"""Between looks at what tenants may have."""
AGAIN_S = 1.0
"""After a step that failed."""

UNSEEN = (Node("cluster", alive=True, total=Resources(gpus=1 << 30), free=Resources(gpus=1 << 30)),)
"""A Kubernetes that does not let us list its nodes knows by itself what has room; quotas and shares hold."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlPlaneConfig:
    """What a control plane works with."""

    home: Path
    state: str
    backend_name: str
    connect: Callable[[], ClusterBackend]
    group_of: Callable[[JobEntry], Group]
    decide: Callable[[Snapshot], Sequence[JobDecision]] = decide
    tenants: TenantRegistry | None = None
    """Of whom, and what they may have; if left out, as the state in the home says."""
    min_run_s: float = MIN_RUN_S
    reconcile: bool = True
    """Whether this one may lead; else it only takes and answers requests."""


class ControlPlane:
    """The records of a control plane, and the threads that act on them."""

    def __init__(self, setting: ControlPlaneConfig, address: str = "") -> None:
        self.setting = setting
        self.database = open_plane(setting.state)
        self.records = JobStore(self.database)
        self.house = setting.tenants or TenantRegistry(setting.home)
        self._shared_s = -SHARES_EVERY_S
        self.identity = self.records.identity()
        self.lease = DatabaseLease(self.database, f"{socket.gethostname()}:{os.getpid()}", address)
        self.last: ReconcileResult | None = None
        self.step_s: float | None = None
        self._poked, self._over = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._keep_lease, name="plane-lease", daemon=True),
            threading.Thread(target=self._reconcile, name="plane-reconcile", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads if self.setting.reconcile else ():
            thread.start()

    def poke(self) -> None:
        """Something was asked for: look at once."""
        self._poked.set()

    def close(self) -> None:
        """End after the step under way, and let another one lead at once."""
        self._over.set()
        self._poked.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10.0)
        try:
            self.lease.resign()
        except WindlassError as error:
            log.warning("the lease could not be given back, it runs out: %s", error.message)
        self.database.close()

    def leads(self) -> bool:
        return self.lease.holds(time.monotonic())

    def _keep_lease(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                before = self.lease.epoch
                if self.lease.step(time.monotonic()) and before is None:
                    log.warning("leads from epoch %s on", self.lease.epoch)
                    self._poked.set()
            except WindlassError as error:
                log.warning("the lease cannot be kept: %s", error.message)

    def _reconcile(self) -> None:
        reconciler: Reconciler | None = None
        epoch = None
        while not self._over.is_set():
            if not self.leads():
                reconciler = None
                self._wait(BEAT_S / 4)
                continue
            try:
                if reconciler is None or epoch != self.lease.epoch:
                    epoch, reconciler = self.lease.epoch, self._reconciler()
                self._tell_shares(time.monotonic())
                began_s = time.perf_counter()
                self.last = reconciler.step()
                self.step_s = time.perf_counter() - began_s
                self._wait(0.0 if self.last.moves else STEP_S)
            except LostLeadership:
                reconciler = None
            except Exception as error:  # noqa: BLE001 - the door of a thread: the next step begins anew
                reconciler, self.last = None, ReconcileResult(trouble=_words(error))
                self._over.wait(AGAIN_S)

    def _tell_shares(self, now_s: float) -> None:
        """Let decisions go by what is recorded of tenants: what they may have is kept in one place."""
        if now_s - self._shared_s < SHARES_EVERY_S:
            return
        self._shared_s = now_s
        known = self.records.shares()
        for tenant, share in self.house.shares().items():
            before = known.get(tenant)
            if before is None or replace(before, used=0.0) != share:
                self.records.set_share(share)

    def _reconciler(self) -> Reconciler:
        setting = self.setting
        return Reconciler(
            FencedLeaderStore(self.records, lambda: self.lease.epoch),
            setting.connect(),
            setting.group_of,
            setting.decide,
            identity=self.identity,
            leads=self.leads,
            min_run_s=setting.min_run_s,
            unseen=UNSEEN if setting.backend_name == "kubernetes" else (),
        )

    def _wait(self, seconds: float) -> None:
        self._poked.wait(seconds)
        self._poked.clear()


def _words(error: Exception) -> str:
    if isinstance(error, WindlassError):
        log.warning("a step failed: %s", error.message)
        return error.message
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("a step failed: %s at %s:%s", type(error).__name__, place.name, place.lineno)
    return f"a mistake of ours ({type(error).__name__}); the log has it"
