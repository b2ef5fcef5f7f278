"""Which limits apply to a caller: those of everybody, of its tenant and of its key.

A tenant or key without limits of its own has those that the job file gives to each. Records come from the
database, and from memory while nothing changed there, so most requests wait for nobody.
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
    """The rules of one service."""

    def __init__(self, settings: ServeLimits, database: Database | None) -> None:
        self._settings, self._database = settings, database
        self._keys = ApiKeys(database) if database else None
        self._tenants = Tenants(database) if database else None
        self._page: tuple[int | None, dict[tuple[str, str], Rules]] = (0, {})

    async def rules(self, caller: Caller) -> Rules:
        """Return every budget that a request of this caller takes from."""
        revision = self._database.revision() if self._database else 0
        if revision is None or revision != self._page[0]:
            self._page = revision, {}
        known = self._page[1]
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
        each = self._settings
        rules = _of(ALL, each.all)
        if caller.tenant:
            rules += _of(f"tenant:{caller.tenant}", (tenant and tenant.limits) or each.tenant)
        if caller.key:
            rules += _of(f"key:{caller.key}", (key and key.limits) or each.key)
        return rules


def _of(scope: str, limits: Limits) -> Rules:
    return [(Name(scope, kind), rule) for kind, rule in rules_of(limits).items()]
