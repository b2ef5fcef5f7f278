"""Measured efficiency of serving engines, as a few constants for each.

Input: tables/serving.toml, which `windlass plan serving --judge --write` renews from published rows.
Output: one Reach an engine. The software generation is an input: an engine that is not in the table is
taken as the middle of those that are.
"""

from __future__ import annotations

import statistics
import tomllib
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "tables" / "serving.toml"


@dataclass(frozen=True)
class Reach:
    """One engine's constants."""

    compute: float
    """Share of the arithmetic peak in prefill."""
    grouped: float
    """The same in the products of experts, which are small and unequal."""
    bandwidth: float
    """Share of the memory bandwidth in decoding."""
    layer_s: float
    """Of every layer and pass, whatever the batch: launches, norms, routing."""
    sparse_s: float
    """More of every layer with experts: choosing, sorting and gathering."""
    hop_s: float
    """Of one all-reduce, for every doubling of the devices."""
    request_s: float
    """From the request to its first layer, and from the last to the client."""
    stolen: float
    """Share of the others' prefill that delays a decoding request; 1 where nothing overlaps."""
    bunched: float
    """How much of a standing crowd a new request finds ahead of it; 0 where arrivals are independent."""


@dataclass(frozen=True)
class Spread:
    """Between which multiples of a prediction four of five measured times are, on unseen systems."""

    first: tuple[float, float]
    token: tuple[float, float]


NAMES = tuple(field.name for field in fields(Reach))


@cache
def published() -> dict[str, Reach]:
    """Return the fitted constants of every engine."""
    return {name: Reach(**entry) for name, entry in _table()["engines"].items()}


@cache
def spread() -> Spread:
    """Return how far off predictions are, as judged on what they were not fitted to."""
    entry = _table()["interval"]
    return Spread((entry["first"][0], entry["first"][1]), (entry["token"][0], entry["token"][1]))


def reach_of(engine: str, known: dict[str, Reach] | None = None) -> Reach:
    """Return an engine's constants, or the middle of all for one that was never measured."""
    known = published() if known is None else known
    return known.get(engine) or middle(known)


def middle(known: dict[str, Reach]) -> Reach:
    values = {name: [getattr(reach, name) for reach in known.values()] for name in NAMES}
    return Reach(**{name: statistics.median(found) for name, found in values.items()})


def text_of(known: dict[str, Reach], spread: Spread) -> str:
    """Write constants as the table that `published` reads."""
    lines = ["# Fitted by `windlass plan serving --judge --write`; see serving/fitted_constants.py."]
    lines += [
        "",
        "[interval]",
        *(f"{key} = [{low:.3g}, {high:.3g}]" for key, (low, high) in asdict(spread).items()),
    ]
    for name, reach in sorted(known.items()):
        lines += ["", f"[engines.{name}]", *(f"{key} = {getattr(reach, key):.4g}" for key in NAMES)]
    return "\n".join(lines) + "\n"


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text())
