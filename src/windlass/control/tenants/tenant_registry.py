"""The tenants of an installation: home directory, user id, quota and secrets of each.

    HOME/tenants/TENANT     its corpora, runs, models and launches; readable by its user only
    HOME/secrets/TENANT     SECRET/KEY, the values of its credentials; readable by the control plane only

The first tenant, "default", owns the installation: its home is HOME, and its processes are not isolated.
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
from windlass.cluster.process.sandbox import EXEC, MAX_SECRET_BYTES, others_can_execute, others_can_import
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
"""Directories of the home that tenants' users may traverse, but not list."""


@dataclass(frozen=True)
class TenantContext:
    """One tenant: its home, user id, allowance and secrets."""

    tenant: str
    home: Path
    allowance: Allowance
    uid: int | None = None
    secrets: Path = Path()
    python: str = ""

    @property
    def paths(self) -> TenantPaths:
        return TenantPaths(self.tenant, self.home, self.allowance.root)

    @property
    def isolation(self) -> Isolation | None:
        """The isolation of its processes on a machine; None for the owner of the installation."""
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
        """Refuse to start anything for a tenant that exceeds its disk quota."""
        limit = self.allowance.quota.disk
        if limit is not None and bytes_of(self.home, self.uid, limit) > limit:
            raise InUse(
                f"tenant '{self.tenant}' has more than its {format_bytes(limit)} on disk",
                hint="remove runs or models that are no longer needed",
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

    def context(self, tenant: str) -> TenantContext:
        """Return the tenant's home, limits and user id; unknown tenants get the defaults."""
        found = self.tenants.find(tenant)
        allowance = found.allowance if found is not None else Allowance()
        if tenant == DEFAULT:
            return TenantContext(tenant, self.home, allowance)
        home, secrets = self.home / FOLDER / tenant, self.home / SECRETS / tenant
        return TenantContext(tenant, home, allowance, self._uid(tenant), secrets, self.python)

    def is_open(self, tenant: str) -> bool:
        """Whether a tenant may submit jobs: it is not suspended."""
        found = self.tenants.find(tenant)
        return found is None or found.suspended_s is None

    def shares(self) -> dict[str, TenantQuota]:
        """Return the quota of every recorded tenant, for the scheduler."""
        return {each.name: share_of(each.name, each.allowance) for each in self.tenants.list()}

    def allow(self, tenant: str, change: Callable[[Allowance], Allowance], by: str) -> None:
        """Change a tenant's allowance; an unknown tenant is recorded."""
        actor = Actor("", by)
        if self.tenants.find(tenant) is None:
            with contextlib.suppress(InUse):  # another process was first
                self.tenants.make(tenant, actor)
        self.tenants.set(tenant, actor, allow=change)

    def isolated(
        self, group_of: Callable[[E], Group], tenant_of: Callable[[E], str], backend: str
    ) -> Callable[[E], Group]:
        """Return `group_of` with isolation added to each group; Kubernetes isolates by namespaces."""

        def isolated_group(entry: E) -> Group:
            context, group = self.context(tenant_of(entry)), group_of(entry)
            if backend == "kubernetes":
                return replace(group, secrets={**context.allowance.credentials, **group.secrets})
            return replace(group, isolation=context.isolation)

        return isolated_group

    def prepare(self) -> None:
        """Set up the home for several users, or raise why it is impossible: isolation is never partial."""
        for name in (FOLDER, SECRETS):
            (self.home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.users is None:
            return
        if os.geteuid() != 0:
            raise BadInput(
                "only root can run tenants under their own user ids", hint="leave out --tenant-users"
            )
        python = self.python or sys.executable
        if not others_can_execute(python):
            raise BadInput(
                f"tenants' users cannot execute {python}",
                hint="--tenant-python: one of this version that all users can execute, e.g. /usr/bin/python3",
            )
        if not others_can_import():
            raise BadInput(
                f"tenants' users cannot read the code of windlass in {EXEC.parents[2]}",
                hint="install it where all users can read it, e.g. in /opt",
            )
        closed = [p for p in self.home.resolve().parents if not p.stat().st_mode & 0o001]
        if closed:
            raise BadInput(
                f"tenants' users cannot traverse {closed[-1]} to their homes", hint="choose another --home"
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
        """Give a restored home, which still belongs to this user, to its tenant's user."""
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
    """Store the value of a credential where only the control plane can read it; None removes it."""
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
    """Return an allowance as input of the scheduler."""
    quota = allowance.quota
    limits = QuotaLimit(quota.cores, quota.memory, quota.gpus)
    max_priority = None if tenant == DEFAULT and not allowance.priority else allowance.priority
    return TenantQuota(tenant, allowance.weight, limits, quota.jobs, max_priority)


def users_from(text: str) -> range:
    """Read "200000-265535"."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1000 <= int(first) <= int(last) < 2**32 - 2):
        raise BadInput(
            f"--tenant-users {text}: is not FIRST-LAST", hint="a range of unused user ids, e.g. 200000-265535"
        )
    return range(int(first), int(last) + 1)
