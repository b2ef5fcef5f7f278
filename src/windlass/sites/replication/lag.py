"""Compares the sites with the depot: which versions each has, and how far it is behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.sites.replication.artifact_store import Key, SiteInventory, StoredVersion


@dataclass(frozen=True)
class SiteCopies:
    """The versions of the depot at one site."""

    site: str
    has: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]
    missing_bytes: int
    behind_s: float | None
    """Seconds since the oldest missing version was published; None if nothing is missing."""
    report_age_s: float | None
    """Seconds since its last report; None without a report."""
    aliases: Mapping[str, Mapping[str, int]]
    trouble: str

    def facts(self) -> dict[str, Any]:
        return {
            "site": self.site,
            "has": list(self.has),
            "missing": list(self.missing),
            "different": list(self.different),
            "missing_bytes": self.missing_bytes,
            "behind_s": None if self.behind_s is None else round(self.behind_s, 1),
            "report_age_s": None if self.report_age_s is None else round(self.report_age_s, 1),
            "aliases": {name: dict(meant) for name, meant in self.aliases.items()},
            "trouble": self.trouble,
        }


def copies(
    sites: Iterable[str],
    stored: Mapping[Key, StoredVersion],
    reports: Mapping[str, SiteInventory],
    now: float,
) -> list[SiteCopies]:
    """Compare the report of every site with the depot."""
    return [_of(site, stored, reports.get(site), now) for site in sites]


def has(report: SiteInventory | None, stored: StoredVersion) -> bool:
    """Whether a site has a version, with the right content."""
    there = {} if report is None else report.versions.get(stored.name, {})
    return there.get(str(stored.number)) == stored.manifest.digest


def _of(
    site: str, stored: Mapping[Key, StoredVersion], report: SiteInventory | None, now: float
) -> SiteCopies:
    versions = sorted(stored.values(), key=lambda one: one.key)
    held = [one for one in versions if has(report, one)]
    there = {} if report is None else report.versions
    different = [o for o in versions if o not in held and str(o.number) in there.get(o.name, {})]
    missing = [one for one in versions if one not in held and one not in different]
    oldest = min((one.published_s for one in missing), default=None)
    return SiteCopies(
        site,
        tuple(map(str, held)),
        tuple(map(str, missing)),
        tuple(map(str, different)),
        sum(one.bytes for one in missing),
        None if oldest is None else max(0.0, now - oldest),
        None if report is None else max(0.0, now - report.at_s),
        {} if report is None else report.aliases,
        "" if report is None else report.trouble,
    )
