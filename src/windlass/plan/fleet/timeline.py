"""Where the time of a step goes, stage by stage: what a pipeline does when.

Input: a layout of a plan (docs/formats/plan.md). Output: pieces, each of one kind, for the drawing.

Without virtual stages a stage computes by 1F1B (Narayanan et al. 2021, arXiv:2104.04473, section 2.2): as
many forward passes as stages come from it to the last, then one backward and one forward in turn. Where
those are too many pieces to see, or stages are interleaved, the waiting of a stage is drawn as three gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["forward", "backward", "communication", "waiting", "update"]

MAX_PASSES = 400
WAITING = ("idle", "straggler")
COMMUNICATION = ("exchange", "send", "gather")
AT_THE_END = ("gradient exchange", "optimizer")


@dataclass(frozen=True)
class TimelineSpan:
    """What a stage does from one moment to another."""

    stage: int
    kind: Kind
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Shares:
    """The parts of a step, by what they are."""

    computing_s: float
    communication_s: float
    """Between micro-batches."""
    idle_s: float
    """Of a stage, for others."""
    exchange_s: float
    """Of gradients, at the end."""
    update_s: float
    late_s: float
    """For stragglers, at the end."""

    @property
    def passes_s(self) -> float:
        return self.computing_s + self.communication_s


def kind_of(part: str) -> Literal["computing", "communication", "waiting"]:
    """Classify a part of a step by its name."""
    if any(word in part for word in WAITING):
        return "waiting"
    return "communication" if any(word in part for word in COMMUNICATION) else "computing"


def shares_of(parts: Mapping[str, float]) -> Shares:
    """Add up the parts of a step."""
    inner = {name: seconds for name, seconds in parts.items() if name not in AT_THE_END}

    def of(kind: str, *, straggling: bool = False) -> float:
        named = (name for name in inner if kind_of(name) == kind and ("straggler" in name) == straggling)
        return sum(inner[name] for name in named)

    return Shares(
        computing_s=of("computing"),
        communication_s=of("communication"),
        idle_s=of("waiting"),
        exchange_s=parts.get("gradient exchange", 0.0),
        update_s=parts.get("optimizer", 0.0),
        late_s=of("waiting", straggling=True),
    )


def timeline(layout: Mapping[str, Any]) -> list[TimelineSpan]:
    """Return what every stage does in a step, from 0 to its end."""
    choices, shares = layout["choices"], shares_of(layout["step_parts_s"])
    stages, passes = choices["pp"], choices["micro_batches"]
    again = choices["recompute_share"] if choices["recompute"] == "full" else 0
    forward = 1 / (3 + again)
    if choices["virtual"] == 1 and stages * passes <= MAX_PASSES:
        busy = list(_one_forward_one_backward(stages, passes, forward))
    else:
        busy = list(_three_gaps(stages, forward, shares))
    last = max(piece.end_s for piece in busy)
    scale = (shares.passes_s + shares.idle_s) / last
    spans = [piece for one in busy for piece in _divided(one, scale, shares)]
    return [*spans, *_waits(spans, stages, last * scale), *_ends(stages, last * scale, shares)]


def _one_forward_one_backward(stages: int, passes: int, forward: float) -> Iterator[TimelineSpan]:
    """Yield the passes of 1F1B; a micro-batch takes a stage one unit of time, `forward` of it forth."""
    orders = [_order(min(passes, stages - stage), passes) for stage in range(stages)]
    ends: dict[tuple[int, Kind, int], float] = {}
    clocks, done = [0.0] * stages, [0] * stages
    while any(done[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            while done[stage] < len(orders[stage]):
                kind, batch = orders[stage][done[stage]]
                other = stage - 1 if kind == "forward" else stage + 1
                first = other < 0 or other == stages
                if not first and (other, kind, batch) not in ends:
                    break
                begin = max(clocks[stage], 0.0 if first else ends[other, kind, batch])
                clocks[stage] = begin + (forward if kind == "forward" else 1 - forward)
                ends[stage, kind, batch] = clocks[stage]
                done[stage] += 1
                yield TimelineSpan(stage, kind, begin, clocks[stage])


def _order(ahead: int, passes: int) -> list[tuple[Kind, int]]:
    """Return in which order a stage works: `ahead` forward, then in turn, then what is left backward."""
    order: list[tuple[Kind, int]] = [("forward", batch) for batch in range(ahead)]
    for batch in range(passes):
        order.append(("backward", batch))
        if batch + ahead < passes:
            order.append(("forward", batch + ahead))
    return order


def _three_gaps(stages: int, forward: float, shares: Shares) -> Iterator[TimelineSpan]:
    """Yield forward and backward work as two blocks: the first stage waits between, the last around them."""
    work, idle = shares.passes_s, shares.idle_s
    for stage in range(stages):
        outside = idle * stage / max(1, stages - 1)
        begin = outside * forward
        middle = begin + work * forward
        yield TimelineSpan(stage, "forward", begin, middle)
        yield TimelineSpan(
            stage, "backward", middle + idle - outside, middle + idle - outside + work * (1 - forward)
        )


def _divided(piece: TimelineSpan, scale: float, shares: Shares) -> Iterator[TimelineSpan]:
    """Yield the computing of a pass and, behind it, its share of the communication."""
    begin, end = piece.begin_s * scale, piece.end_s * scale
    boundary = begin + (end - begin) * (shares.computing_s / shares.passes_s if shares.passes_s else 1.0)
    parts = [
        TimelineSpan(piece.stage, piece.kind, begin, boundary),
        TimelineSpan(piece.stage, "communication", boundary, end),
    ]
    yield from (part for part in parts if part.end_s > part.begin_s)


def _waits(pieces: list[TimelineSpan], stages: int, until_s: float) -> Iterator[TimelineSpan]:
    """Yield the gaps between the pieces of each stage."""
    for stage in range(stages):
        clock = 0.0
        for piece in sorted((p for p in pieces if p.stage == stage), key=lambda p: p.begin_s):
            if piece.begin_s - clock > 1e-9 * until_s:
                yield TimelineSpan(stage, "waiting", clock, piece.begin_s)
            clock = piece.end_s
        if until_s - clock > 1e-9 * until_s:
            yield TimelineSpan(stage, "waiting", clock, until_s)


def _ends(stages: int, begin_s: float, shares: Shares) -> Iterator[TimelineSpan]:
    """Yield what all stages do at the same time after the last micro-batch."""
    steps: list[tuple[Kind, float]] = [
        ("communication", shares.exchange_s),
        ("update", shares.update_s),
        ("waiting", shares.late_s),
    ]
    for stage in range(stages):
        clock = begin_s
        for kind, seconds in steps:
            if seconds > 0:
                yield TimelineSpan(stage, kind, clock, clock + seconds)
                clock += seconds
