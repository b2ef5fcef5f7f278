"""The effect of an injected fault, and how to heal it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class NothingToHit(Exception):
    """There is no victim at the moment; there may be one soon."""


def _nothing() -> None:
    pass


def _no_tick(_now_s: float) -> None:
    pass


@dataclass
class InjectedFault:
    """An injected fault: permanent, or until it is healed."""

    workers: tuple[str, ...] = ()
    """Workers that it killed or holds."""
    nodes: tuple[str, ...] = ()
    share_left: float = 0.0
    """Share of its work that each of these workers can still do."""
    lasts: bool = True
    """Whether it is healed later; else it is permanent."""
    interrupts: bool = True
    """Whether training needs a new generation to continue."""
    note: str = ""
    heal: Callable[[], None] = _nothing
    tick: Callable[[float], None] = _no_tick
    """Called every few milliseconds while the fault lasts."""
    facts: dict[str, Any] = field(default_factory=dict)
