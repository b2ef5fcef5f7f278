"""Tenants: each has limits and settings of its own, and keys in its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from windlass.serve.records.audit_log import HEAD, Act, Actor, append
from windlass.serve.records.naming import checked_name
from windlass.serve.records.record_cache import RecordCache
from windlass.spec.config_model import ConfigModel
from windlass.spec.errors import AskedWrongly, Damaged, InUse, NotFound, did_you_mean
from windlass.spec.limits import Limits
from windlass.spec.tenancy import DEFAULT, Allowance
from windlass.store.database import Database, Row, Schema, Transaction

M = TypeVar("M", bound=ConfigModel)

TENANTS = Schema(
    "tenants",
    (
        """CREATE TABLE tenants (name TEXT PRIMARY KEY, limits TEXT, settings TEXT NOT NULL,
        made_s DOUBLE PRECISION NOT NULL, suspended_s DOUBLE PRECISION)""",
        f"INSERT INTO tenants VALUES ('{DEFAULT}', NULL, '{{}}', 0, NULL)",
        "ALTER TABLE tenants ADD COLUMN allowance TEXT",
        "CREATE TABLE tenant_numbers (name TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE)",
    ),
)


class TenantSettings(ConfigModel):
    """Settings of a tenant."""

    shared_prefix: bool = Field(
        False, description="its prompts may share cached prefixes with other tenants that agreed"
    )


@dataclass(frozen=True)
class Tenant:
    """One tenant."""

    name: str
    limits: Limits | None
    settings: TenantSettings
    made_s: float
    suspended_s: float | None
    allowance: Allowance = field(default_factory=Allowance)

    def facts(self) -> dict[str, Any]:
        """Return it for a script."""
        return {
            "name": self.name,
            "limits": None if self.limits is None else self.limits.model_dump(exclude_none=True),
            "settings": self.settings.model_dump(),
            "made_s": self.made_s,
            "suspended_s": self.suspended_s,
            "allowance": self.allowance.model_dump(exclude_none=True),
        }


class Tenants:
    """The tenants of a service."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._known = RecordCache(database, self._read)

    def find(self, name: str) -> Tenant | None:
        """Return a tenant, from memory if nothing has changed since."""
        return self._known.get(name)

    def get(self, name: str) -> Tenant:
        """Return a tenant; raise NotFound with the nearest name."""
        known = {tenant.name: tenant for tenant in self.list()}
        if name not in known:
            raise NotFound(f"no tenant called '{name}'", hint=did_you_mean(name, list(known)))
        return known[name]

    def list(self) -> tuple[Tenant, ...]:
        return tuple(map(_tenant, self._database.read(f"{_SELECT} ORDER BY name")))

    def make(
        self,
        name: str,
        by: Actor,
        *,
        limits: Limits | None = None,
        settings: TenantSettings | None = None,
        allowance: Allowance | None = None,
    ) -> Tenant:
        tenant = Tenant(
            checked_name(name),
            limits,
            settings or TenantSettings(),
            self._now(),
            None,
            allowance or Allowance(),
        )

        def work(transaction: Transaction) -> None:
            if transaction.execute("SELECT 1 FROM tenants WHERE name = ?", name):
                raise InUse(
                    f"a tenant called '{name}' exists already", hint="`windlass tenants set` changes one"
                )
            transaction.execute("INSERT INTO tenants VALUES (?, ?, ?, ?, ?, ?)", *_row(tenant))
            append(transaction, by, Act("tenant.make", name), now_s=tenant.made_s)

        self._database.atomically(work, alone=HEAD)
        return tenant

    def set(
        self,
        name: str,
        by: Actor,
        *,
        limits: Limits | None = None,
        settings: TenantSettings | None = None,
        suspended: bool | None = None,
        allow: Callable[[Allowance], Allowance] | None = None,
    ) -> Tenant:
        """Change what is given; limits without any entry remove the present ones.

        `allow` computes the new allowance from the present one, so that concurrent changes are not lost.
        """
        self.get(name)

        def work(transaction: Transaction) -> Tenant:
            old = _one(transaction.execute(f"{_SELECT} WHERE name = ?", name))
            if old is None:
                raise NotFound(f"no tenant called '{name}'")
            new = _changed(old, limits, settings, suspended, self._now())
            new = replace(new, allowance=old.allowance if allow is None else allow(old.allowance))
            transaction.execute(
                "UPDATE tenants SET limits = ?, settings = ?, made_s = ?, suspended_s = ?, allowance = ?"
                " WHERE name = ?",
                *_row(new)[1:],
                name,
            )
            append(
                transaction,
                by,
                Act("tenant.set", name, note=_audit_note(limits, settings, suspended, old, new)),
                now_s=self._now(),
            )
            return new

        return self._database.atomically(work, alone=HEAD)

    def remove(self, name: str, by: Actor) -> None:
        """Remove a tenant that has no valid key, and its revoked keys."""
        if name == DEFAULT:
            raise AskedWrongly(
                f"the tenant '{DEFAULT}' cannot be removed",
                hint="`windlass tenants set default --suspend` suspends it",
            )
        self.get(name)

        def work(transaction: Transaction) -> None:
            live = "SELECT name FROM keys WHERE tenant = ? AND revoked_s IS NULL ORDER BY name"
            keys = [row[0] for row in transaction.execute(live, name)]
            if keys:
                raise InUse(f"'{name}' still has keys: {', '.join(keys[:5])}", hint="revoke them first")
            transaction.execute("DELETE FROM keys WHERE tenant = ?", name)
            transaction.execute("DELETE FROM tenants WHERE name = ?", name)
            append(transaction, by, Act("tenant.remove", name), now_s=self._now())

        self._database.atomically(work, alone=HEAD)

    def number(self, name: str) -> int:
        """Return the number of a tenant, from 1; it never changes and is never given to another tenant."""

        def work(transaction: Transaction) -> int:
            known = transaction.execute("SELECT number FROM tenant_numbers WHERE name = ?", name)
            if not known:
                known = transaction.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM tenant_numbers")
                transaction.execute("INSERT INTO tenant_numbers VALUES (?, ?)", name, int(known[0][0]))
            return int(known[0][0])

        return self._database.atomically(work, alone="tenant_numbers")

    def _read(self, name: str) -> Tenant | None:
        return _one(self._database.read(f"{_SELECT} WHERE name = ?", name))

    def _now(self) -> float:
        return round(self._clock(), 3)


def read_limits(text: str | None, whose: str) -> Limits | None:
    """Read the limits of a row; raise Damaged if they are not valid."""
    return None if text is None else _read(Limits, text, whose)


def read_settings(text: str, whose: str) -> TenantSettings:
    """Read the settings of a tenant's row."""
    return _read(TenantSettings, text, whose)


_SELECT = "SELECT name, limits, settings, made_s, suspended_s, allowance FROM tenants"


def _tenant(row: Row) -> Tenant:
    name, limits, settings, made_s, suspended_s, allowed = row
    where = f"tenant '{name}'"
    allowance = Allowance() if allowed is None else _read(Allowance, allowed, where)
    return Tenant(
        name, read_limits(limits, where), read_settings(settings, where), made_s, suspended_s, allowance
    )


def _read(model: type[M], text: str, whose: str) -> M:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        raise Damaged(
            f"the limits or settings of {whose} cannot be read", hint="did a newer windlass write them?"
        ) from None


def _one(rows: list[Row]) -> Tenant | None:
    return _tenant(rows[0]) if rows else None


def _row(tenant: Tenant) -> tuple[object, ...]:
    limits = None if tenant.limits is None else tenant.limits.model_dump_json(exclude_none=True)
    allowance = tenant.allowance.model_dump_json(exclude_none=True)
    settings = tenant.settings.model_dump_json()
    return tenant.name, limits, settings, tenant.made_s, tenant.suspended_s, allowance


def _changed(
    old: Tenant, limits: Limits | None, settings: TenantSettings | None, suspended: bool | None, now_s: float
) -> Tenant:
    lifted = limits is not None and not limits.model_dump(exclude_none=True)
    since_s = old.suspended_s or now_s if suspended else None
    return Tenant(
        old.name,
        None if lifted else limits or old.limits,
        settings or old.settings,
        old.made_s,
        old.suspended_s if suspended is None else since_s,
    )


def _audit_note(
    limits: Limits | None, settings: TenantSettings | None, suspended: bool | None, old: Tenant, new: Tenant
) -> str:
    parts = []
    if limits is not None:
        parts.append(f"limits {limits.model_dump_json(exclude_none=True)}")
    if settings is not None:
        parts.append(f"settings {settings.model_dump_json()}")
    if suspended is not None:
        parts.append("suspended" if suspended else "resumed")
    if new.allowance != old.allowance:
        parts.append(f"allowance {new.allowance.model_dump_json(exclude_none=True)}")
    return "; ".join(parts)
