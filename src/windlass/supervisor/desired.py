"""The desired state: versions, the number of replicas of each, and the share of requests each gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """One model, its further names, and its adapters by name."""

    name: str
    model: Path
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)

    @property
    def bare(self) -> str:
        """The name without its version: what clients usually ask for."""
        return self.name.partition("@")[0]


@dataclass(frozen=True)
class ReplicaGroup:
    """Equal replicas: each serves one version of a model, or several models side by side."""

    items: tuple[Item, ...]
    replicas: int = 1
    weight: float = 1.0
    """Its weight among the groups of the bare name; 0 gets no requests."""
    shadow: float = 0.0
    """The share of requests for the bare name that it gets as copies; their answers are discarded."""

    @property
    def version(self) -> str:
        """The name of the group: the id of its first model."""
        return self.items[0].name


@dataclass(frozen=True)
class DesiredService:
    """Everything that should run."""

    groups: tuple[ReplicaGroup, ...]
    standby: tuple[str, ...] = ()
    """Versions that answer for the others of their name, in this order, while those have no replica."""

    def group(self, version: str) -> ReplicaGroup | None:
        return next((group for group in self.groups if group.version == version), None)

    def with_group(self, group: ReplicaGroup) -> DesiredService:
        """Return this with one group added, or replaced if its version is there already."""
        if self.group(group.version) is None:
            return replace(self, groups=(*self.groups, group))
        changed = (group if each.version == group.version else each for each in self.groups)
        return replace(self, groups=tuple(changed))

    def without(self, version: str) -> DesiredService:
        return replace(self, groups=tuple(each for each in self.groups if each.version != version))
