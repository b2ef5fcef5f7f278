"""What is known of a roll-out over sites. It is written to the depot before and after every effect."""

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
    """How far one site has come."""

    phase: Phase = "waiting"
    since_s: float = 0.0
    stable: str = ""
    """What it served before."""
    before: tuple[str, ...] = ()
    """Roll-outs that the site knew before it was asked for this one: any other of the version is ours."""
    before_undoing: tuple[str, ...] | None = None
    good_s: float | None = None
    """Since when known answers have been right."""
    bad: int = 0
    quiet_s: float | None = None
    """Since when it does not answer."""
    why: str = ""

    def to(self, phase: Phase, now: float, **changes: Any) -> SiteState:
        return replace(self, phase=phase, since_s=now, good_s=None, bad=0, quiet_s=None, **changes)


@dataclass(frozen=True)
class SitesRolloutRecord:
    """A version on its way."""

    model: str
    order: tuple[str, ...]
    began_s: float
    changed_s: float
    state: State = "under way"
    failing: str = ""
    """Why it is being taken back; empty while it goes forward."""
    back: bool = False
    """Whether sites that are done are taken back as well when a later one fails."""
    reason: str = ""
    sites: Mapping[str, SiteState] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    """What versions answer to the known question."""

    @property
    def name(self) -> str:
        return self.model.partition("@")[0]

    def with_turn(self, site: str, turn: SiteState) -> SitesRolloutRecord:
        return replace(self, sites={**self.sites, site: turn})

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def load(depot: ArtifactStore, name: str) -> SitesRolloutRecord | None:
    """Return the last roll-out of a model over sites."""
    told = depot.read(_file(name))
    if told is None:
        return None
    try:
        if told.pop("format") != FORMAT:
            raise ValueError("another format")
        sites = {site: _turn(each) for site, each in told.pop("sites").items()}
        return SitesRolloutRecord(**{**told, "order": tuple(told["order"])}, sites=sites)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{depot.place.url}/{_file(name)}: not readable as a roll-out: {error}") from None


def save(depot: ArtifactStore, record: SitesRolloutRecord) -> None:
    depot.write(_file(record.name), {"format": FORMAT, **asdict(record)})


def all_names(depot: ArtifactStore) -> list[str]:
    """List the models that were ever rolled out over sites."""
    return sorted(name[len("rollouts/") : -len(".json")] for name in depot.place.names("rollouts"))


def _turn(told: dict[str, Any]) -> SiteState:
    undoing = told["before_undoing"]
    return SiteState(
        **{
            **told,
            "before": tuple(told["before"]),
            "before_undoing": None if undoing is None else tuple(undoing),
        }
    )


def _file(name: str) -> str:
    return f"rollouts/{name}.json"
