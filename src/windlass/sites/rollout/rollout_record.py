"""The state of a rollout over sites. It is saved in the depot before and after every side effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from windlass.sites.replication.artifact_store import ArtifactStore
from windlass.spec.errors import Damaged

FORMAT = "windlass-sites-rollout-1"
Phase = Literal[
    "waiting", "ready", "draining", "asking", "rolling", "settling", "done", "undoing", "undone", "failed"
]
State = Literal["under way", "done", "stopped", "failed"]
OVER: tuple[Phase, ...] = ("done", "undone", "failed")
UNTOUCHED: tuple[Phase, ...] = ("waiting", "ready", "draining", "asking")
"""Phases in which the site serves what it served before."""


@dataclass(frozen=True)
class SiteState:
    """The progress of one site."""

    phase: Phase = "waiting"
    since_s: float = 0.0
    stable: str = ""
    """The version it served before."""
    before: tuple[str, ...] = ()
    """Ids of the site's rollouts before this one was requested; any other of the version is ours."""
    before_undoing: tuple[str, ...] | None = None
    good_s: float | None = None
    """Since when its probes have been good."""
    bad: int = 0
    quiet_s: float | None = None
    """Since when it has not answered."""
    why: str = ""

    def to(self, phase: Phase, now: float, **changes: Any) -> SiteState:
        return replace(self, phase=phase, since_s=now, good_s=None, bad=0, quiet_s=None, **changes)


@dataclass(frozen=True)
class SitesRolloutRecord:
    """The rollout of a version over sites."""

    model: str
    order: tuple[str, ...]
    began_s: float
    changed_s: float
    state: State = "under way"
    failing: str = ""
    """Why it is being rolled back; empty while it proceeds."""
    back: bool = False
    """Whether finished sites are rolled back as well when a later one fails."""
    reason: str = ""
    sites: Mapping[str, SiteState] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    """Expected answers of the versions to the probe prompt."""

    @property
    def name(self) -> str:
        return self.model.partition("@")[0]

    def with_turn(self, site: str, turn: SiteState) -> SitesRolloutRecord:
        return replace(self, sites={**self.sites, site: turn})

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def load(depot: ArtifactStore, name: str) -> SitesRolloutRecord | None:
    """Return the last rollout of a model over sites."""
    fields = depot.read(_file(name))
    if fields is None:
        return None
    try:
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        sites = {site: _turn(each) for site, each in fields.pop("sites").items()}
        return SitesRolloutRecord(**{**fields, "order": tuple(fields["order"])}, sites=sites)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{depot.place.url}/{_file(name)}: not readable as a roll-out: {error}") from None


def save(depot: ArtifactStore, record: SitesRolloutRecord) -> None:
    depot.write(_file(record.name), {"format": FORMAT, **asdict(record)})


def all_names(depot: ArtifactStore) -> list[str]:
    """List the models that were ever rolled out over sites."""
    return sorted(name[len("rollouts/") : -len(".json")] for name in depot.place.names("rollouts"))


def _turn(fields: dict[str, Any]) -> SiteState:
    undoing = fields["before_undoing"]
    return SiteState(
        **{
            **fields,
            "before": tuple(fields["before"]),
            "before_undoing": None if undoing is None else tuple(undoing),
        }
    )


def _file(name: str) -> str:
    return f"rollouts/{name}.json"
