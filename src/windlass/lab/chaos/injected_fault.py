"""What a fault did to a run, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class NothingToHit(Exception):
    """There is nobody to hurt at this moment; there may be soon."""


def _nothing() -> None:
    pass


def _no_tick(_now_s: float) -> None:
    pass


@dataclass
class InjectedFault:
    """An injury of the run: for good, or until it heals."""

    workers: tuple[str, ...] = ()
    """Those that it took or held."""
    nodes: tuple[str, ...] = ()
    share_left: float = 0.0
    """Of the work that each of these workers can still do."""
    lasts: bool = True
    """Whether it heals; else it is for good."""
    interrupts: bool = True
    """Whether training has to regroup to go on."""
    note: str = ""
    heal: Callable[[], None] = _nothing
    tick: Callable[[float], None] = _no_tick
    """Called every few milliseconds while the wound is open."""
    facts: dict[str, Any] = field(default_factory=dict)
