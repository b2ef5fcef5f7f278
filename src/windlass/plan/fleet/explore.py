"""Finds the best layouts of some work on equal devices.

    layouts -> memory (those that do not fit are dropped) -> time -> best first

Exhaustive search is the reference: it leaves out only what cannot win. Where a recomputation fits, those that
recompute more are slower; where none fits, no larger micro-batch fits either. Greedy search (`greedy`)
estimates a few hundred layouts and is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from windlass.plan.cost.device_memory import DeviceMemory, device_memory
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.cost.step_time import StepTime, ranked_s, step_time
from windlass.plan.fleet.layouts import divisions, variants
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.work import TrainingWork

Objective = Literal["time", "money", "memory"]
OUTER_BYTES = 8
"""Per weight, for replicas with local updates: the last synchronised value, and the outer momentum."""


@dataclass(frozen=True)
class Predictor:
    """Predicts time and memory of a layout."""

    time: Callable[[TrainingStep], StepTime] = step_time
    memory: Callable[[TrainingStep], DeviceMemory] = device_memory


PUBLISHED = Predictor()


@dataclass(frozen=True)
class LayoutEstimate:
    """A layout with its predicted memory and time."""

    case: TrainingStep
    memory: DeviceMemory
    step: StepTime | None
    """None where it does not fit."""

    @property
    def fits(self) -> bool:
        return self.step is not None

    @cached_property
    def step_s(self) -> float:
        return self.step.seconds if self.step is not None else float("inf")


@dataclass(frozen=True)
class SearchFound:
    """The result of a search."""

    options: tuple[LayoutEstimate, ...]
    """Those that fit, best first."""
    counted: int
    smallest: LayoutEstimate | None
    """The one with the least memory among those that do not fit; None where no layout divides the work."""

    @property
    def best(self) -> LayoutEstimate | None:
        return self.options[0] if self.options else None


def exhaustive(
    work: TrainingWork, pool: DevicePool, objective: Objective = "time", predict: Predictor = PUBLISHED
) -> SearchFound:
    """Estimate every layout that might win."""
    return found(_walk(work, pool, objective, predict), objective)


def found(seen: Iterator[LayoutEstimate], objective: Objective) -> SearchFound:
    """Sort the estimates."""
    everything = list(seen)
    options = sorted((w for w in everything if w.fits), key=lambda w: value(w, objective))
    unfit = (w for w in everything if not w.fits)
    return SearchFound(
        tuple(options), len(everything), min(unfit, key=lambda w: w.memory.bytes, default=None)
    )


def value(estimate: LayoutEstimate, objective: Objective) -> tuple[float, float]:
    """Return the cost to minimise: memory, or else time, a pipeline's with a margin.

    On equal devices the quickest run is the cheapest too; `fleet_search` checks whether fewer would be
    cheaper.
    """
    if objective == "memory":
        return estimate.memory.bytes, estimate.step_s
    return ranked_s(estimate.case, estimate.step_s), estimate.memory.bytes


def estimate_layout(work: TrainingWork, case: TrainingStep, predict: Predictor) -> LayoutEstimate:
    """Predict the memory of a layout, and its time if it fits.

    It fits if the upper end of the interval does: a run that dies for lack of memory costs more than one
    that could have been a little quicker.
    """
    memory = predict.memory(case)
    if work.sync.local and case.dp > 1:
        memory = _with_outer_state(case, memory)
    if memory.high > case.device.memory_bytes:
        return LayoutEstimate(case, memory, None)
    return LayoutEstimate(case, memory, _synced(work, case, predict))


def _walk(
    work: TrainingWork, pool: DevicePool, objective: Objective, predict: Predictor
) -> Iterator[LayoutEstimate]:
    for division in divisions(work, pool):
        for ladder in variants(work, pool, division):
            for rung in ladder:
                fitting = False
                for case in rung:
                    yield (seen := estimate_layout(work, case, predict))
                    fitting = fitting or seen.fits
                    if seen.fits and objective != "memory":
                        break
                if not fitting:
                    break


def _synced(work: TrainingWork, case: TrainingStep, predict: Predictor) -> StepTime:
    """Return the mean step: with local updates, replicas pay for the exchange every `sync.every` steps."""
    step = predict.time(case)
    if not work.sync.local or case.dp == 1:
        return step
    alone = predict.time(
        replace(case, dp=1, devices=case.devices // case.dp, global_batch=case.global_batch // case.dp)
    )
    exchange = max(0.0, step.seconds - alone.seconds)
    every = work.sync.every if work.sync.policy != "timed" else max(1.0, work.sync.seconds / alone.seconds)
    seconds = alone.seconds + exchange / every
    scale = seconds / alone.seconds
    return StepTime(
        seconds, alone.low * scale, alone.high * scale, {**alone.parts, "exchange": exchange / every}
    )


def _with_outer_state(case: TrainingStep, memory: DeviceMemory) -> DeviceMemory:
    outer = OUTER_BYTES * case.sizes.parameters / (case.tp * case.pp)
    return replace(
        memory,
        bytes=memory.bytes + outer,
        low=memory.low + outer,
        high=memory.high + outer,
        parts={**memory.parts, "outer state": outer},
    )
