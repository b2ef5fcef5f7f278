"""Begins a roll-out over sites, or goes on with one that was left."""

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
    """Return the version that "name@3" means in the depot: what is not there can come to no site."""
    name, at, number = reference.partition("@")
    if not at or not number.isdigit():
        raise AskedWrongly(f"'{reference}' names no version", hint=f"say which: {name}@N")
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
    """Give the journey of a version, begun or gone on with; only one process may have it."""
    if len(sites.site) < 2:
        raise AskedWrongly(
            f"{sites.zone} has one site only, and would have none while it changes",
            hint=f"windlass rollout start {reference} rolls out within one site",
        )
    stored = find_version(depot, reference)
    with alone(depot.place, "rollout", f"the roll-out over the sites of {sites.zone}"):
        record = _begun(sites, depot, stored, clock(), back=back)
        known = dict(record.known)
        doors = clients_of(sites, depot, stored, folder, known)

        _check_keys(doors)

        def keep(record: SitesRolloutRecord) -> None:
            save(depot, replace(record, known=dict(known)))

        keep(record)
        yield SitesRolloutDriver(record, doors, sites.rollout, sites.watch.fall, keep)


def give_up(depot: ArtifactStore, name: str, zone: str, clock: Callable[[], float]) -> SitesRolloutRecord:
    """End what nobody goes on with; sites stay as they are."""
    with alone(depot.place, "rollout", f"the roll-out over the sites of {zone}"):
        record = load(depot, name)
        if record is None:
            raise NotFound(
                f"{name} was never rolled out over sites", hint=", ".join(all_names(depot)) or None
            )
        if record.state in ("under way", "stopped"):
            record = replace(record, state="failed", reason="given up by a person", changed_s=clock())
            save(depot, record)
        return record


def preview(sites: Sites, depot: ArtifactStore, reference: str, folder: Path) -> list[dict[str, Any]]:
    """Say how each site stands before anything is done to it, in the order of the roll-out."""
    doors = clients_of(sites, depot, find_version(depot, reference), folder, {})
    return [_looked_at(name, doors[name]) for name in sites.order]


def _looked_at(name: str, door: HttpSiteClient) -> dict[str, Any]:
    row: dict[str, Any] = {"site": name, "copy": door.has_copy(), "serves": None, "well": False, "why": ""}
    try:
        probe = door.ask()
        return {**row, "serves": door.serving(), "well": probe.good, "why": probe.why}
    except WindlassError as error:
        return {**row, "why": error.message}


def _check_keys(doors: dict[str, HttpSiteClient]) -> None:
    """Refuse at once what a site refuses: half-way, it could be drained and stay so."""
    for door in doors.values():
        try:
            door.serving()
        except AskedWrongly:
            raise
        except WindlassError:
            continue  # it may be back when its turn comes


def _begun(
    sites: Sites, depot: ArtifactStore, stored: StoredVersion, now: float, *, back: bool
) -> SitesRolloutRecord:
    last = load(depot, stored.name)
    if last is not None and last.state in ("under way", "stopped"):
        if last.model != str(stored):
            raise InUse(
                f"{last.model} is on its way from site to site: {last.reason or last.state}",
                hint=f"go on with it, or end it: windlass sites rollout SITES.toml {last.name} --give-up",
            )
        if set(last.order) != set(sites.order):
            raise AskedWrongly("the sites are others than those that it began with", hint="--give-up ends it")
        return replace(resumed(last, now), back=back)
    order = sites.order
    return SitesRolloutRecord(
        str(stored), order, now, now, back=back, sites={name: SiteState(since_s=now) for name in order}
    )
