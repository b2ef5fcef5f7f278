"""A control plane inside a process: one thread renews the lease, one reconciles while this process leads.

The threads never end the process: a failed step is logged and reported, and the next step starts over from
the database. Several such processes may share a database; all of them take requests, one acts.
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
"""Between steps when no request arrives."""
SHARES_EVERY_S = 2.0
"""Between reads of the tenants' quotas."""
AGAIN_S = 1.0
"""After a step that failed."""

UNSEEN = (Node("cluster", alive=True, total=Resources(gpus=1 << 30), free=Resources(gpus=1 << 30)),)
"""Stands for a Kubernetes whose nodes may not be listed: it places pods itself; quotas still hold."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlPlaneConfig:
    """The configuration of a control plane."""

    home: Path
    state: str
    backend_name: str
    connect: Callable[[], ClusterBackend]
    group_of: Callable[[JobEntry], Group]
    decide: Callable[[Snapshot], Sequence[JobDecision]] = decide
    tenants: TenantRegistry | None = None
    """The tenants and their quotas; by default those recorded in the home."""
    min_run_s: float = MIN_RUN_S
    reconcile: bool = True
    """Whether this process may lead; if not, it only takes requests."""


class ControlPlane:
    """The job tables of a control plane, and the threads that act on them."""

    def __init__(self, config: ControlPlaneConfig, address: str = "") -> None:
        self.config = config
        self.database = open_plane(config.state)
        self.records = JobStore(self.database)
        self.tenants = config.tenants or TenantRegistry(config.home)
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
        for thread in self._threads if self.config.reconcile else ():
            thread.start()

    def poke(self) -> None:
        """A request changed something: start the next step at once."""
        self._poked.set()

    def close(self) -> None:
        """End after the current step, and release the lease."""
        self._over.set()
        self._poked.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10.0)
        try:
            self.lease.resign(time.monotonic())
        except WindlassError as error:
            log.warning("could not release the lease, it will expire: %s", error.message)
        self.database.close()

    def leads(self) -> bool:
        return self.lease.holds(time.monotonic())

    def _keep_lease(self) -> None:
        while not self._over.wait(BEAT_S):
            try:
                before = self.lease.epoch
                if self.lease.step(time.monotonic()) and before is None:
                    log.warning("this process leads from epoch %s", self.lease.epoch)
                    self._poked.set()
            except WindlassError as error:
                log.warning("could not renew the lease: %s", error.message)

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
                self._write_shares(time.monotonic())
                began_s = time.perf_counter()
                self.last = reconciler.step()
                self.step_s = time.perf_counter() - began_s
                self._wait(0.0 if self.last.transitions else STEP_S)
            except LostLeadership:
                reconciler = None
            except Exception as error:  # noqa: BLE001 - top of a thread: the next step starts over
                reconciler, self.last = None, ReconcileResult(trouble=_message(error))
                self._over.wait(AGAIN_S)

    def _write_shares(self, now_s: float) -> None:
        """Copy the quotas from the tenant registry, which is their only source, to the job tables."""
        if now_s - self._shared_s < SHARES_EVERY_S:
            return
        self._shared_s = now_s
        known = self.records.shares()
        for tenant, share in self.tenants.shares().items():
            before = known.get(tenant)
            if before is None or replace(before, used=0.0) != share:
                self.records.set_share(share)

    def _reconciler(self) -> Reconciler:
        config = self.config
        return Reconciler(
            FencedLeaderStore(self.records, lambda: self.lease.epoch),
            config.connect(),
            config.group_of,
            config.decide,
            identity=self.identity,
            leads=self.leads,
            min_run_s=config.min_run_s,
            unseen=UNSEEN if config.backend_name == "kubernetes" else (),
        )

    def _wait(self, seconds: float) -> None:
        self._poked.wait(seconds)
        self._poked.clear()


def _message(error: Exception) -> str:
    if isinstance(error, WindlassError):
        log.warning("a step failed: %s", error.message)
        return error.message
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("a step failed: %s at %s:%s", type(error).__name__, place.name, place.lineno)
    return f"internal error ({type(error).__name__}), see the log"
