"""Where a tenant lives in an installation: its home, its user id, and what its processes are held to.

    HOME/tenants/TENANT     its corpora, runs, models and launches; its user's alone
    HOME/secrets/TENANT     SECRET/KEY, the values of its credentials; only whoever runs the plane reads them

The first tenant, "default", is whoever owns the installation: it lives in the home itself, without walls.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from windlass.cluster.backend import Group, Isolation
from windlass.cluster.process.disk_usage import bytes_of
from windlass.cluster.process.sandbox import MAX_SECRET_BYTES, others_can_execute
from windlass.control.scheduler.snapshot import QuotaLimit, TenantQuota
from windlass.control.tenants.tenant_paths import TenantPaths
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.state import open_state, state_url
from windlass.serve.records.tenants import Tenants
from windlass.spec.errors import BadInput, InUse
from windlass.spec.read import parse
from windlass.spec.tenancy import DEFAULT, FOLDER, Allowance
from windlass.spec.units import format_bytes
from windlass.store.store_dir import StoreDir

E = TypeVar("E")

SECRETS = "secrets"
PASSABLE = (FOLDER, "cluster")
"""Directories of the home through which tenants' users pass; they can list neither."""


@dataclass(frozen=True)
class TenantContext:
    """One tenant's place."""

    tenant: str
    home: Path
    allowance: Allowance
    uid: int | None = None
    secrets: Path = Path()
    python: str = ""

    @property
    def ground(self) -> TenantPaths:
        return TenantPaths(self.tenant, self.home, self.allowance.root)

    @property
    def walls(self) -> Isolation | None:
        """What its processes on a machine are held to; none for whoever owns the installation."""
        if self.tenant == DEFAULT:
            return None
        quota = self.allowance.quota
        return Isolation(
            home=str(self.home),
            uid=self.uid,
            secrets=str(self.secrets),
            credentials=self.allowance.credentials,
            python=self.python,
            cores=quota.cores,
            memory_bytes=quota.memory,
            processes=quota.processes,
            disk_bytes=quota.disk,
            log_bytes=quota.log,
        )

    def check_disk(self) -> None:
        """Refuse to begin anything for a tenant that has more on disk than it may."""
        most = self.allowance.quota.disk
        if most is not None and bytes_of(self.home, self.uid, most) > most:
            raise InUse(
                f"tenant '{self.tenant}' has more than its {format_bytes(most)} on disk",
                hint="remove runs or models that are not needed any more",
            )


@dataclass(frozen=True)
class TenantRegistry:
    """The tenants of one installation. With `users`, each has a user id of its own from that range."""

    home: Path
    state: str | None = None
    users: range | None = None
    python: str = ""

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(open_state(state_url(self.home, self.state)))

    def lodging(self, tenant: str) -> TenantContext:
        """Return where a tenant lives; one of whom nothing is recorded has what everybody has."""
        found = self.tenants.find(tenant)
        allowance = found.allowance if found is not None else Allowance()
        if tenant == DEFAULT:
            return TenantContext(tenant, self.home, allowance)
        home, secrets = self.home / FOLDER / tenant, self.home / SECRETS / tenant
        return TenantContext(tenant, home, allowance, self._uid(tenant), secrets, self.python)

    def is_open(self, tenant: str) -> bool:
        """Whether a tenant may ask for anything: one that is suspended may not."""
        found = self.tenants.find(tenant)
        return found is None or found.suspended_s is None

    def shares(self) -> dict[str, TenantQuota]:
        """Return what admission goes by, of every tenant that is recorded."""
        return {each.name: share_of(each.name, each.allowance) for each in self.tenants.list()}

    def allow(self, tenant: str, change: Callable[[Allowance], Allowance], by: str) -> None:
        """Change what a tenant may have; one that is not recorded yet is from now on."""
        actor = Actor("", by)
        if self.tenants.find(tenant) is None:
            with contextlib.suppress(InUse):  # another was first
                self.tenants.make(tenant, actor)
        self.tenants.set(tenant, actor, allow=change)

    def walled(
        self, group_of: Callable[[E], Group], tenant_of: Callable[[E], str], backend: str
    ) -> Callable[[E], Group]:
        """Return how entries become groups that are walled in; Kubernetes does it by namespaces."""

        def walled(entry: E) -> Group:
            lodging, group = self.lodging(tenant_of(entry)), group_of(entry)
            if backend == "kubernetes":
                return replace(group, secrets={**lodging.allowance.credentials, **group.secrets})
            return replace(group, walls=lodging.walls)

        return walled

    def prepare(self) -> None:
        """Make the home fit for several users, or say why it cannot be: nobody is walled in by halves."""
        for name in (FOLDER, SECRETS):
            (self.home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.users is None:
            return
        if os.geteuid() != 0:
            raise BadInput("only root can give tenants users of their own", hint="leave out --tenant-users")
        python = self.python or sys.executable
        if not others_can_execute(python):
            raise BadInput(
                f"tenants' users cannot execute {python}",
                hint="--tenant-python names one of the same version that everybody can, as /usr/bin/python3",
            )
        closed = [p for p in self.home.resolve().parents if not p.stat().st_mode & 0o001]
        if closed:
            raise BadInput(
                f"tenants' users cannot pass through {closed[-1]} to their homes", hint="--home elsewhere"
            )
        (self.home / "cluster").mkdir(exist_ok=True)
        self.home.chmod(0o711)
        for path in self.home.iterdir():
            if not path.is_symlink():
                mode = 0o711 if path.name in PASSABLE else path.stat().st_mode & 0o700
                path.chmod(mode)

        for folder in (self.home / FOLDER).iterdir():
            self._hand_over(folder)

    def _hand_over(self, folder: Path) -> None:
        """Give a home that was restored, and is nobody's yet, to its tenant's user."""
        uid = self._uid(folder.name)
        if uid is None or folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
        folder.chmod(0o700)

    def _uid(self, tenant: str) -> int | None:
        if self.users is None:
            return None
        number = self.tenants.number(tenant) - 1
        if number >= len(self.users):
            raise BadInput(
                f"no user id is left for tenant '{tenant}': all {len(self.users)} are taken",
                hint="start the control plane with a larger --tenant-users",
            )
        return self.users[number]


def keep_secret(home: Path, tenant: str, reference: str, value: bytes | None) -> None:
    """Keep the value of a credential where only whoever runs the plane reads it; None removes it."""
    parse(Allowance, {"credentials": {"VALUE": reference}}, "secret")
    path = home / SECRETS / tenant / reference
    if value is None:
        path.unlink(missing_ok=True)
        return
    if not value.strip() or len(value) > MAX_SECRET_BYTES or b"\x00" in value:
        raise BadInput(f"the value of {reference} must be 1 to {MAX_SECRET_BYTES} bytes, none of them zero")
    for folder in (home / SECRETS, home / SECRETS / tenant, path.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with StoreDir(path.parent).writing(path.name) as file:
        Path(file.name).chmod(0o600)
        file.write(value)


def share_of(tenant: str, allowance: Allowance) -> TenantQuota:
    """Return an allowance as a decision about the queue sees it."""
    quota = allowance.quota
    room = QuotaLimit(quota.cores, quota.memory, quota.gpus)
    most = None if tenant == DEFAULT and not allowance.priority else allowance.priority
    return TenantQuota(tenant, allowance.weight, room, quota.jobs, most)


def users_from(text: str) -> range:
    """Read "200000-265535"."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1000 <= int(first) <= int(last) < 2**32 - 2):
        raise BadInput(
            f"--tenant-users {text}: is not FIRST-LAST", hint="user ids of nobody, e.g. 200000-265535"
        )
    return range(int(first), int(last) + 1)
