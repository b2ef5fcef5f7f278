"""The rollout's access to one site: its copies through the depot, everything else through its gateway.

A site that does not answer raises WindlassError; a site that rejects a request raises AskedWrongly.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from windlass.sites.dns.site_health import Probe
from windlass.sites.dns.site_probe import ask
from windlass.sites.replication.artifact_store import ArtifactStore, StoredVersion
from windlass.sites.replication.lag import has
from windlass.spec.errors import AskedWrongly, InUse, NotFound, WindlassError
from windlass.spec.rollout import Rollout
from windlass.spec.sites import Site, SiteCheck, Sites

TIMEOUT_S = 10.0
STALE_S = 5.0
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class SiteRollout:
    """A rollout at a site, as the site reports it."""

    id: str
    candidate: str
    state: str
    reason: str
    weight: float = 0.0


class SiteClient(Protocol):
    """The operations of a site that a rollout uses. The driver checks the site before it repeats one."""

    def has_copy(self) -> bool: ...
    def serving(self) -> str: ...
    def rollouts(self) -> list[SiteRollout]: ...
    def start(self, candidate: str, kind: str, policy: Rollout) -> None: ...
    def command(self, rollout: str, verb: str) -> None: ...
    def ask(self) -> Probe: ...
    def drain(self, *, on: bool) -> None: ...
    def is_withdrawn(self) -> bool: ...


class HttpSiteClient:
    """A site through its admin API. Draining uses the folder of this home's DNS server."""

    def __init__(
        self,
        site: Site,
        sites: Sites,
        depot: ArtifactStore,
        stored: StoredVersion,
        folder: Path,
        key: str | None,
        known: MutableMapping[str, str],
    ) -> None:
        self._site, self._depot, self._stored, self._folder = site, depot, stored, folder
        self._key, self._known = key, known
        other = sites.watch.model not in (None, stored.name)
        changes: dict[str, Any] = {"model": stored.name} | ({"expect": None} if other else {})
        self._watch: SiteCheck = sites.watch.model_copy(update=changes)

    def has_copy(self) -> bool:
        return has(self._depot.reports().get(self._site.name), self._stored)

    def serving(self) -> str:
        routes = self._get("/admin/replicas")["routes"]
        weights = routes.get(self._stored.name, {}).get("weights", {})
        if not weights:
            raise NotFound(
                f"{self._site.name} does not serve {self._stored.name}",
                hint=f"start it there: windlass serve {self._stored.name}",
            )
        return str(max(weights, key=lambda version: weights[version]))

    def rollouts(self) -> list[SiteRollout]:
        """List the site's own rollouts of this model, newest first."""
        rows = [row for row in self._get("/admin/rollouts")["data"] if row["name"] == self._stored.name]
        return [SiteRollout(r["id"], r["candidate"], r["state"], r["reason"], r["weight"]) for r in rows]

    def start(self, candidate: str, kind: str, policy: Rollout) -> None:
        body = {"candidate": candidate, "kind": kind, "policy": policy.model_dump(mode="json")}
        self._call("POST", "/admin/rollouts", body)

    def command(self, rollout: str, verb: str) -> None:
        self._call("POST", f"/admin/rollouts/{rollout}/{verb}")

    def ask(self) -> Probe:
        async def once() -> Probe:
            async with httpx.AsyncClient() as client:
                return await ask(client, self._site, self._watch, self._key, self._known)

        probe = asyncio.run(once())
        if probe.why.startswith(NO_ANSWER):
            raise WindlassError(f"{self._site.name}: {probe.why}")
        return probe

    def drain(self, *, on: bool) -> None:
        file = self._folder / "drain" / self._site.name
        if on:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        else:
            file.unlink(missing_ok=True)

    def is_withdrawn(self) -> bool:
        """Whether the DNS server, which must run here, has withdrawn the site (cached answers expired)."""
        file = self._folder / "standing.json"
        standing: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {"time": 0.0}
        if time.time() - standing["time"] > STALE_S:
            raise WindlassError("no DNS server runs on this home to send clients elsewhere")
        states = {row["site"]: row["state"] for row in standing["sites"]}
        return states.get(self._site.name) == "withdrawn"

    def _get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path)

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        where = f"{self._site.name} ({self._site.url}{path})"
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            reply = httpx.request(
                method, f"{self._site.url}{path}", json=body, headers=headers, timeout=TIMEOUT_S
            )
        except (httpx.HTTPError, OSError) as error:
            raise WindlassError(f"{where}: {NO_ANSWER}: {type(error).__name__}") from None
        return _read(reply, where)


def _read(reply: httpx.Response, where: str) -> dict[str, Any]:
    match reply.status_code:
        case httpx.codes.OK | httpx.codes.CREATED:
            return dict(reply.json())
        case httpx.codes.UNAUTHORIZED | httpx.codes.FORBIDDEN:
            raise AskedWrongly(
                f"{where}: the key may not do this",
                hint="$WINDLASS_KEY, or the site's key_variable, must hold a key with --scope admin",
            )
        case httpx.codes.CONFLICT:
            raise InUse(f"{where}: {_message(reply)}")
        case status if 400 <= status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
            raise AskedWrongly(f"{where}: {_message(reply)}")
        case status:
            raise WindlassError(f"{where}: answers with status {status}")


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"
