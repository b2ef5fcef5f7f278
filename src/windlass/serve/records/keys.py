"""API keys: each has a tenant, scopes and a lifetime; only digests of their tokens are stored (http.bearer).

A token is shown once, when it is created. A rotated key keeps its id, limits and name under a new token; the
former token may stay valid for a while.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from windlass.http.bearer import digest_of, new_token
from windlass.serve.records.audit_log import HEAD, Act, Actor, append
from windlass.serve.records.naming import checked_name
from windlass.serve.records.record_cache import RecordCache
from windlass.serve.records.tenants import read_limits, read_settings
from windlass.spec.errors import BadInput, InUse, NotFound, did_you_mean
from windlass.spec.limits import Limits
from windlass.spec.tenancy import DEFAULT
from windlass.store.database import Database, Row, Schema, Transaction

Scope = Literal["use", "admin", "metrics"]
SCOPES: tuple[Scope, ...] = ("use", "admin", "metrics")
FIRST = "admin"
LONGEST_S = 100 * 365.25 * 86400
ITSELF = Actor("", "the service")
KEYS = Schema(
    "keys",
    (
        """CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL,
        tenant TEXT NOT NULL REFERENCES tenants, scopes TEXT NOT NULL, made_s DOUBLE PRECISION NOT NULL,
        expires_s DOUBLE PRECISION, revoked_s DOUBLE PRECISION, limits TEXT,
        sha256 TEXT NOT NULL UNIQUE, former_sha256 TEXT, former_until_s DOUBLE PRECISION)""",
        "CREATE UNIQUE INDEX keys_in_use ON keys (name) WHERE revoked_s IS NULL",
        "CREATE INDEX keys_former ON keys (former_sha256)",
    ),
)
_SELECT = """SELECT k.id, k.name, k.tenant, k.scopes, k.made_s, k.expires_s, k.revoked_s, k.limits,
    t.suspended_s, t.settings, k.sha256, k.former_sha256, k.former_until_s
    FROM keys k JOIN tenants t ON t.name = k.tenant"""


@dataclass(frozen=True)
class ApiKey:
    """One key, without the digests of its tokens."""

    id: str
    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    made_s: float
    expires_s: float | None
    revoked_s: float | None
    limits: Limits | None
    tenant_suspended: bool = False
    shared_prefix: bool = False
    """Whether its tenant agreed to share cached prompt prefixes."""

    def refusal(self, now_s: float) -> str | None:
        """Return why the key is not valid now, or None if it is."""
        if self.revoked_s is not None and now_s >= self.revoked_s:
            return "was revoked"
        if self.expires_s is not None and now_s >= self.expires_s:
            return "has expired"
        return f"belongs to '{self.tenant}', which is suspended" if self.tenant_suspended else None

    def facts(self, now_s: float) -> dict[str, Any]:
        """Return it for a script."""
        return {
            "id": self.id,
            "name": self.name,
            "tenant": self.tenant,
            "scopes": list(self.scopes),
            "made_s": self.made_s,
            "expires_s": self.expires_s,
            "revoked_s": self.revoked_s,
            "limits": None if self.limits is None else self.limits.model_dump(exclude_none=True),
            "refused": self.refusal(now_s),
        }


@dataclass(frozen=True)
class _Entry:
    """A key with the digest that matched."""

    key: ApiKey
    sha256: str
    until_s: float | None

    def opens(self, digest: str, now_s: float) -> bool:
        known = hmac.compare_digest(self.sha256, digest)
        return known and (self.until_s is None or now_s < self.until_s) and self.key.refusal(now_s) is None


class ApiKeys:
    """The keys of a service."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._entries = RecordCache(database, self._entry)
        self._ids = RecordCache(database, self._identified)

    def find(self, token: str) -> ApiKey | None:
        """Return the key of a token, if it is valid now.

        It is looked up by its digest, no part of which a sender can choose, and compared in constant time.
        """
        digest = digest_of(token)
        return self._opened(self._entries.get(digest), digest)

    def at_hand(self, token: str) -> ApiKey | None:
        """Return the same from memory, without waiting for a server; None if `find` must look."""
        digest = digest_of(token)
        return self._opened(self._entries.at_hand(digest), digest)

    def by_id(self, id_: str) -> ApiKey | None:
        """Return a key by its id, from memory if nothing has changed since."""
        return self._ids.get(id_)

    def get(self, name: str, tenant: str | None = None) -> ApiKey:
        """Return the key with this id, or the newest with this name; raise NotFound with the nearest name.

        With a tenant, only its keys are considered.
        """
        keys = self.list(tenant)
        found = [key for key in keys if key.id == name] or [key for key in keys if key.name == name]
        if not found:
            near = [key.name for key in keys if key.revoked_s is None]
            raise NotFound(f"no key called '{name}'", hint=did_you_mean(name, near) if near else None)
        return max(found, key=lambda key: (key.revoked_s is None, key.made_s))

    def list(self, tenant: str | None = None) -> tuple[ApiKey, ...]:
        """Return all keys, or all of a tenant, including revoked ones."""
        where, args = ("", ()) if tenant is None else ("WHERE k.tenant = ?", (tenant,))
        rows = self._database.read(f"{_SELECT} {where} ORDER BY k.tenant, k.name, k.made_s", *args)
        return tuple(map(_key, rows))

    def make(
        self,
        name: str,
        by: Actor,
        *,
        tenant: str = DEFAULT,
        scopes: Iterable[str] = ("use",),
        expires_s: float | None = None,
        limits: Limits | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key; return it and its token, which cannot be read again."""
        now_s, token = self._now(), new_token()
        if expires_s is not None and not now_s < expires_s <= now_s + LONGEST_S:
            raise BadInput("the expiry must be in the future and within 100 years; leave it out for never")
        key_id = f"key_{secrets.token_hex(6)}"
        key = ApiKey(key_id, checked_name(name), tenant, _scopes(scopes), now_s, expires_s, None, limits)

        def work(transaction: Transaction) -> ApiKey:
            _check_free(transaction, key)
            transaction.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, NULL, NULL)",
                key.id, key.name, tenant, ",".join(key.scopes),
                now_s, expires_s, _json(limits), digest_of(token),
            )  # fmt: skip
            act = Act("key.make", f"{key.name} ({key.id})", note=f"tenant {tenant}; {', '.join(key.scopes)}")
            append(transaction, by, act, now_s=now_s)
            return _key(transaction.execute(f"{_SELECT} WHERE k.id = ?", key.id)[0])

        return self._database.atomically(work, alone=HEAD), token

    def revoke(self, name: str, by: Actor, *, tenant: str | None = None) -> ApiKey:
        """Revoke a key at once, its former token too."""
        key = self.get(name, tenant)
        return self._change(key, by, "key.revoke", "revoked_s = ?", self._now())

    def rotate(
        self, name: str, by: Actor, *, grace_s: float = 0.0, tenant: str | None = None
    ) -> tuple[ApiKey, str]:
        """Give a key a new token and return both; the former token stays valid for `grace_s`."""
        if not 0 <= grace_s <= LONGEST_S:
            raise BadInput("the grace period of a former token must be between 0 and 100 years")
        token = new_token()
        change = "former_sha256 = sha256, former_until_s = ?, sha256 = ?"
        note = f"the former token stays valid for {grace_s:g} s" if grace_s else ""
        until_s, found = self._now() + grace_s, self.get(name, tenant)
        key = self._change(found, by, "key.rotate", change, until_s, digest_of(token), note=note)
        return key, token

    def limit(self, name: str, limits: Limits | None, by: Actor, *, tenant: str | None = None) -> ApiKey:
        """Give a key limits of its own; None restores the limits that every key has."""
        note = _json(limits) or "as every key"
        return self._change(self.get(name, tenant), by, "key.limit", "limits = ?", _json(limits), note=note)

    def _change(
        self, key: ApiKey, by: Actor, action: str, change: str, *values: object, note: str = ""
    ) -> ApiKey:
        def work(transaction: Transaction) -> ApiKey:
            changed = f"UPDATE keys SET {change} WHERE id = ? AND revoked_s IS NULL RETURNING id"
            if not transaction.execute(changed, *values, key.id):
                raise NotFound(
                    f"key '{key.name}' ({key.id}) was revoked before",
                    hint="`windlass keys make` creates another",
                )
            append(transaction, by, Act(action, f"{key.name} ({key.id})", note=note), now_s=self._now())
            return _key(transaction.execute(f"{_SELECT} WHERE k.id = ?", key.id)[0])

        return self._database.atomically(work, alone=HEAD)

    def _entry(self, digest: str) -> _Entry | None:
        rows = self._database.read(f"{_SELECT} WHERE k.sha256 = ? OR k.former_sha256 = ?", digest, digest)
        if not rows:
            return None
        sha256, former_sha256, former_until_s = rows[0][10:]
        if hmac.compare_digest(sha256, digest):
            return _Entry(_key(rows[0]), sha256, None)
        return _Entry(_key(rows[0]), former_sha256, former_until_s)

    def _identified(self, id_: str) -> ApiKey | None:
        rows = self._database.read(f"{_SELECT} WHERE k.id = ?", id_)
        return _key(rows[0]) if rows else None

    def _opened(self, entry: _Entry | None, digest: str) -> ApiKey | None:
        return entry.key if entry is not None and entry.opens(digest, self._clock()) else None

    def _now(self) -> float:
        return round(self._clock(), 3)


def ensure_first_key(database: Database, *, clock: Callable[[], float] = time.time) -> str | None:
    """Create a key for the administrator if the service never had any key; return its token."""
    keys = ApiKeys(database, clock=clock)
    if keys.list():
        return None
    try:
        return keys.make(FIRST, ITSELF, scopes=SCOPES)[1]
    except InUse:  # another process was first
        return None


def _check_free(transaction: Transaction, key: ApiKey) -> None:
    tenants = [row[0] for row in transaction.execute("SELECT name FROM tenants")]
    if key.tenant not in tenants:
        raise NotFound(f"no tenant called '{key.tenant}'", hint=did_you_mean(key.tenant, tenants))
    if transaction.execute("SELECT 1 FROM keys WHERE name = ? AND revoked_s IS NULL", key.name):
        raise InUse(
            f"a key called '{key.name}' exists already", hint="rotate or revoke it, or use another name"
        )


def _scopes(given: Iterable[str]) -> tuple[Scope, ...]:
    scopes = set(given)
    for scope in sorted(scopes - set(SCOPES)):
        raise BadInput(f"'{scope}' is not a scope", hint=did_you_mean(scope, list(SCOPES)))
    if not scopes:
        raise BadInput("a key needs a scope", hint="use, admin or metrics")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _key(row: Row) -> ApiKey:
    id_, name, tenant, scopes, made_s, expires_s, revoked_s, limits = row[:8]
    granted = tuple(scope for scope in SCOPES if scope in scopes.split(","))
    own = read_limits(limits, f"key '{name}'")
    shared = read_settings(row[9], f"tenant '{tenant}'").shared_prefix
    return ApiKey(id_, name, tenant, granted, made_s, expires_s, revoked_s, own, row[8] is not None, shared)


def _json(limits: Limits | None) -> str | None:
    return None if limits is None else limits.model_dump_json(exclude_none=True)
