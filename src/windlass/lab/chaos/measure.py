"""Computes times and shares from the injected faults and the run's journal. Pure.

Terms of the report:

    detection   from a fault until the coordinator records that the worker is lost; for a coordinator, until
                another one leads
    recovery    from a fault until the first steps of a later generation were committed; for a coordinator,
                as above
    kept        samples not rolled back, relative to what the present workers could have done in that time
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from windlass.lab.chaos.experiment import Experiment, Strike
from windlass.lab.chaos.watch import SeenRecord

LEADERS = ("coordinator", "coordinator-freeze")


@dataclass(frozen=True)
class FaultResponse:
    """How a run responded to one fault."""

    detection_s: float | None
    """None if nothing had to be detected, or nothing was."""
    recovery_s: float | None


@dataclass(frozen=True)
class Absence:
    """A period in which a worker could not do all of its work."""

    from_s: float
    until_s: float
    share: float = 1.0
    """Share of its work that it could not do."""


def answer_to(strike: Strike, seen: Sequence[SeenRecord]) -> FaultResponse:
    """Find the response to a fault in the journal."""
    later = [one for one in seen if one.at_s >= strike.at_s]
    if strike.scheduled.kind in LEADERS:
        taken = _first(one for one in later if one.event == "coordinator" and _epoch(one) > strike.epoch)
        passed_s = taken.at_s - strike.at_s if taken else None
        return FaultResponse(passed_s, passed_s)
    if not strike.fault.interrupts:
        return FaultResponse(None, None)
    noticed = [_first(o for o in later if _is_loss_of(o, worker)) for worker in strike.fault.workers]
    stepped = _first(o for o in later if o.event == "ledger" and _generation(o) > strike.generation)
    return FaultResponse(
        max(one.at_s for one in noticed if one) - strike.at_s if noticed and all(noticed) else None,
        stepped.at_s - strike.at_s if stepped else None,
    )


def absences(experiment: Experiment, seen: Sequence[SeenRecord]) -> list[Absence]:
    """Return the absences: from a fault until it healed, or until another worker joined instead."""
    joined = [one.at_s for one in seen if one.event == "joined"]
    found = []
    for strike in sorted(experiment.strikes, key=lambda s: s.at_s):
        end_s = min(strike.healed_s or math.inf, experiment.ended_s)
        for _worker in strike.fault.workers:
            until_s = end_s
            if strike.fault.share_left == 0:
                came_s = next((at_s for at_s in joined if at_s > strike.at_s), math.inf)
                if came_s <= end_s:
                    joined.remove(came_s)
                    until_s = came_s
            found.append(Absence(strike.at_s, until_s, 1 - strike.fault.share_left))
    return found


def delays(experiment: Experiment) -> list[Absence]:
    """Return the periods of injected network delay."""
    found = [strike for strike in experiment.strikes if strike.scheduled.kind == "delay"]
    return [Absence(strike.at_s, strike.healed_s or experiment.ended_s, 0.0) for strike in found]


@dataclass(frozen=True)
class MeasuredCapacity:
    """Throughput of workers without faults."""

    rates: Mapping[int, float]
    """Samples per second, by number of workers."""
    delayed: float = 1.0
    """Share of it that remains while the network of one worker is slow."""

    def rate(self, workers: float) -> float:
        """Return the samples per second of this many workers, interpolated linearly."""
        if workers <= 0:
            return 0.0
        known = {0: 0.0, **self.rates}
        low, high = math.floor(workers), math.ceil(workers)
        return known[low] + (known[high] - known[low]) * (workers - low)

    def scaled(self, factor: float) -> MeasuredCapacity:
        return MeasuredCapacity(
            {workers: rate * factor for workers, rate in self.rates.items()}, self.delayed
        )


def possible(
    missing: Sequence[Absence],
    delays: Sequence[Absence],
    capacity: MeasuredCapacity,
    *,
    workers: int,
    spares: int,
    from_s: float,
    until_s: float,
) -> float:
    """Return the samples that the present workers could have done: the integral of their capacity."""
    edges = {e for a in (*missing, *delays) for e in (a.from_s, a.until_s) if from_s < e < until_s}
    total = 0.0
    for begin_s, end_s in itertools.pairwise(sorted({from_s, until_s} | edges)):
        away = sum(a.share for a in missing if a.from_s <= begin_s and a.until_s >= end_s)
        delayed = any(a.from_s <= begin_s and a.until_s >= end_s for a in delays)
        rate = capacity.rate(min(workers, workers + spares - away))
        total += rate * (capacity.delayed if delayed else 1.0) * (end_s - begin_s)
    return total


def num_workers(seen: Sequence[SeenRecord]) -> int:
    """Return the number of training or ready workers once the newest generation took steps; else 0."""
    newest = next((one for one in reversed(seen) if one.event == "generation"), None)
    if newest is None or not any(_generation(o) == _generation(newest) for o in seen if o.event == "ledger"):
        return 0
    came = sum(one.event == "joined" for one in seen)
    return came - sum(one.event in ("left", "lost") for one in seen)


@dataclass(frozen=True)
class Position:
    """Samples used and not rolled back, at a time."""

    at_s: float
    samples: int


def positions(seen: Sequence[SeenRecord]) -> list[Position]:
    """Return the progress of the run; a roll-back lowers it."""
    found = []
    for one in seen:
        if one.event == "ledger":
            found.append(Position(one.at_s, int(one.record["samples"][1])))
        elif one.event in ("resumed", "settled") and "samples" in one.record:
            found.append(Position(one.at_s, int(one.record["samples"])))
    return found


def span(found: Sequence[Position], from_s: float, until_s: float) -> tuple[Position, Position]:
    """Return the last position before a time and the first after it, so that no stall is left out."""
    before = [p for p in found if p.at_s <= from_s] or list(found[:1])
    after = [p for p in found if p.at_s >= until_s] or list(found[-1:])
    return before[-1], after[0]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; NaN if empty."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _first(found: Iterator[SeenRecord]) -> SeenRecord | None:
    return next(found, None)


def _is_loss_of(one: SeenRecord, worker: str) -> bool:
    return one.event == "lost" and one.record.get("worker") == worker


def _generation(one: SeenRecord) -> int:
    return int(one.record.get("generation") or 0)


def _epoch(one: SeenRecord) -> int:
    return int(one.record.get("epoch") or 0)
