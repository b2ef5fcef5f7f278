"""Decides which versions are replicated, and which are deleted from the depot. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from windlass.spec.sites import Replicate

Key = tuple[str, int]


@dataclass(frozen=True)
class ReplicatedModel:
    """A model in a registry: its versions, its aliases, and the highest number ever used."""

    numbers: tuple[int, ...]
    aliases: Mapping[str, int] = field(default_factory=dict)
    last: int = 0


def wanted(models: Mapping[str, ReplicatedModel], rule: Replicate) -> set[Key]:
    """Return the versions of a home to publish."""
    found: set[Key] = set()
    for name, model in models.items():
        if name in rule.models or (not rule.models and model.aliases):
            newest = model.numbers[-rule.keep :] if rule.keep else model.numbers
            named = set(model.aliases.values()) & set(model.numbers)
            found |= {(name, number) for number in (*newest, *named)}
    return found


def forgettable(
    stored: Iterable[Key], models: Mapping[str, ReplicatedModel], keep: Collection[Key]
) -> set[Key]:
    """Return the versions to delete from the depot: those of a model of the home that are not in `keep`.

    A model without versions at the home stays: a lost home must not empty its sites. A number that the home
    never used belongs to another home.
    """
    return {
        (name, number)
        for name, number in stored
        if name in models
        and models[name].numbers
        and number <= models[name].last
        and (name, number) not in keep
    }


def in_order(missing: Iterable[Key], aliases: Mapping[str, Mapping[str, int]]) -> list[Key]:
    """Sort missing versions in the order to pull: those with an alias first, then the newest."""

    def place(key: Key) -> tuple[bool, int, str]:
        return key[1] not in aliases.get(key[0], {}).values(), -key[1], key[0]

    return sorted(missing, key=place)
