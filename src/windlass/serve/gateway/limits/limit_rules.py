"""Which limits apply to a caller: those of the whole service, of its tenant and of its key.

A tenant or key without limits of its own has the defaults of the job file. Records are cached in memory until
the database changes, so most requests need no query.
"""

from __future__ import annotations

import asyncio

from windlass.serve.gateway.caller import Caller
from windlass.serve.records.bucket import Rule, rules_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import ALL, Name
from windlass.serve.records.tenants import Tenants
from windlass.spec.limits import Limits, ServeLimits
from windlass.store.database import Database

MAX_REMEMBERED = 20_000
Rules = list[tuple[Name, Rule]]


class LimitRules:
    """The limits of all callers of one service."""

    def __init__(self, settings: ServeLimits, database: Database | None) -> None:
        self._settings, self._database = settings, database
        self._keys = ApiKeys(database) if database else None
        self._tenants = Tenants(database) if database else None
        self._cache: tuple[int | None, dict[tuple[str, str], Rules]] = (0, {})

    async def rules(self, caller: Caller) -> Rules:
        """Return every budget that a request of this caller uses."""
        revision = self._database.revision() if self._database else 0
        if revision is None or revision != self._cache[0]:
            self._cache = revision, {}
        known = self._cache[1]
        whose = caller.key, caller.tenant
        found = known.get(whose)
        if found is None:
            found = await self._read(caller)
            if len(known) < MAX_REMEMBERED:
                known[whose] = found
        return found

    async def _read(self, caller: Caller) -> Rules:
        if self._database is None:
            return self._find(caller)
        return await asyncio.to_thread(self._find, caller)

    def _find(self, caller: Caller) -> Rules:
        tenant = self._tenants.find(caller.tenant) if self._tenants and caller.tenant else None
        key = self._keys.by_id(caller.key) if self._keys and caller.key else None
        defaults = self._settings
        rules = _of(ALL, defaults.all)
        if caller.tenant:
            rules += _of(f"tenant:{caller.tenant}", (tenant and tenant.limits) or defaults.tenant)
        if caller.key:
            rules += _of(f"key:{caller.key}", (key and key.limits) or defaults.key)
        return rules


def _of(scope: str, limits: Limits) -> Rules:
    return [(Name(scope, kind), rule) for kind, rule in rules_of(limits).items()]
