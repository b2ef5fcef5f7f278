"""Progress reports of long-running work.

The worker function calls a `Report` now and then; the caller decides what to do with it: draw a line, write
JSON, or nothing. Work never prints by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How far a stage has come. `total` is None while unknown; `note` holds figures of the stage itself."""

    stage: str
    done: float
    total: float | None = None
    unit: str = ""
    note: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A `Report` that ignores all progress."""
