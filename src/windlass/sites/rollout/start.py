"""Starts a rollout over sites, or resumes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.backup.locks import alone
from windlass.sites.dns.site_probe import key_of
from windlass.sites.replication.artifact_store import ArtifactStore, StoredVersion
from windlass.sites.rollout.driver import SitesRolloutDriver
from windlass.sites.rollout.rollout_record import SitesRolloutRecord, SiteState, all_names, load, save
from windlass.sites.rollout.site_client import HttpSiteClient
from windlass.sites.rollout.turns import resumed
from windlass.spec.errors import AskedWrongly, InUse, NotFound, WindlassError, did_you_mean
from windlass.spec.sites import Sites


def find_version(depot: ArtifactStore, reference: str) -> StoredVersion:
    """Return the version "name@3" of the depot; a version that is not there cannot be rolled out."""
    name, at, number = reference.partition("@")
    if not at or not number.isdigit():
        raise AskedWrongly(f"'{reference}' names no version", hint=f"give one: {name}@N")
    found = depot.version((name, int(number)))
    if found is None:
        known = [f"{one}@{n}" for one, n in depot.listed()]
        raise NotFound(f"the depot has no {reference}", hint=did_you_mean(reference, known))
    return found


def clients_of(
    sites: Sites, depot: ArtifactStore, stored: StoredVersion, folder: Path, known: MutableMapping[str, str]
) -> dict[str, HttpSiteClient]:
    return {
        site.name: HttpSiteClient(site, sites, depot, stored, folder, key_of(site), known)
        for site in sites.site
    }


@contextmanager
def opened(
    sites: Sites,
    depot: ArtifactStore,
    reference: str,
    folder: Path,
    *,
    back: bool,
    clock: Callable[[], float],
) -> Iterator[SitesRolloutDriver]:
    """Yield the driver of a new or resumed rollout; only one process may hold it."""
    if len(sites.site) < 2:
        raise AskedWrongly(
            f"{sites.zone} has only one site, and none would be left while it changes",
            hint=f"windlass rollout start {reference} rolls out within one site",
        )
    stored = find_version(depot, reference)
    with alone(depot.place, "rollout", f"the rollout over the sites of {sites.zone}"):
        record = _begun(sites, depot, stored, clock(), back=back)
        known = dict(record.known)
        clients = clients_of(sites, depot, stored, folder, known)

        _check_keys(clients)

        def keep(record: SitesRolloutRecord) -> None:
            save(depot, replace(record, known=dict(known)))

        keep(record)
        yield SitesRolloutDriver(record, clients, sites.rollout, sites.watch.fall, keep)


def give_up(depot: ArtifactStore, name: str, zone: str, clock: Callable[[], float]) -> SitesRolloutRecord:
    """End a rollout that will not be resumed; sites stay as they are."""
    with alone(depot.place, "rollout", f"the rollout over the sites of {zone}"):
        record = load(depot, name)
        if record is None:
            raise NotFound(
                f"{name} was never rolled out over sites", hint=", ".join(all_names(depot)) or None
            )
        if record.state in ("under way", "stopped"):
            record = replace(record, state="failed", reason="given up by a user", changed_s=clock())
            save(depot, record)
        return record


def preview(sites: Sites, depot: ArtifactStore, reference: str, folder: Path) -> list[dict[str, Any]]:
    """Return the state of each site before a rollout, in its order."""
    clients = clients_of(sites, depot, find_version(depot, reference), folder, {})
    return [_site_row(name, clients[name]) for name in sites.order]


def _site_row(name: str, client: HttpSiteClient) -> dict[str, Any]:
    row: dict[str, Any] = {"site": name, "copy": client.has_copy(), "serves": None, "well": False, "why": ""}
    try:
        probe = client.ask()
        return {**row, "serves": client.serving(), "well": probe.good, "why": probe.why}
    except WindlassError as error:
        return {**row, "why": error.message}


def _check_keys(clients: dict[str, HttpSiteClient]) -> None:
    """Raise now if a site rejects the key: later, the site could stay drained."""
    for client in clients.values():
        try:
            client.serving()
        except AskedWrongly:
            raise
        except WindlassError:
            continue  # it may answer when its turn comes


def _begun(
    sites: Sites, depot: ArtifactStore, stored: StoredVersion, now: float, *, back: bool
) -> SitesRolloutRecord:
    last = load(depot, stored.name)
    if last is not None and last.state in ("under way", "stopped"):
        if last.model != str(stored):
            raise InUse(
                f"{last.model} is being rolled out: {last.reason or last.state}",
                hint=f"resume it, or end it: windlass sites rollout SITES.toml {last.name} --give-up",
            )
        if set(last.order) != set(sites.order):
            raise AskedWrongly(
                "the sites differ from those at the start of the rollout", hint="--give-up ends it"
            )
        return replace(resumed(last, now), back=back)
    order = sites.order
    return SitesRolloutRecord(
        str(stored), order, now, now, back=back, sites={name: SiteState(since_s=now) for name in order}
    )
