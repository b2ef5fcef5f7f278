"""Why there is no plan: the constraint that no layout meets, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windlass.plan.cost.money import format_dollars
from windlass.plan.fleet.alternatives import Way
from windlass.plan.fleet.constraints import Binding
from windlass.plan.fleet.fixes import fixes
from windlass.plan.fleet.fleet_search import Problem, SearchResult
from windlass.spec.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True)
class Infeasible:
    """Why there is no plan."""

    binding: Binding
    sentence: str
    fixes: tuple[Way, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "binding": self.binding,
            "sentence": self.sentence,
            "fixes": [fix.as_dict() for fix in self.fixes],
        }


def no_solution(problem: Problem, seen: SearchResult) -> Infeasible:
    """Name the binding constraint, and try what might help."""
    binding = binding_of(problem, seen)
    return Infeasible(binding, sentence(problem, binding, seen), tuple(fixes(problem, binding, seen)))


def binding_of(problem: Problem, seen: SearchResult) -> Binding:
    """Return the constraint that no layout meets; of deadline and budget the one that is further off.

    Where each can be met but not both, it is money.
    """
    if not seen.runs and seen.hopeless is not None:
        return "time"
    if not seen.runs:
        return "memory" if seen.smallest is not None else "divisibility"
    limits = problem.limits
    late, dear = (min(map(over, seen.runs)) for over in (limits.late, limits.dear))
    return "time" if late > max(1.0, dear) else "money"


def sentence(problem: Problem, binding: Binding, seen: SearchResult) -> str:
    """Describe the binding constraint, with the two numbers that conflict."""
    if binding == "divisibility":
        return _indivisible(problem)
    if binding == "memory":
        return _too_large(problem, seen)
    return _too_late(problem, seen) if binding == "time" else _too_dear(problem, seen)


def _indivisible(problem: Problem) -> str:
    work = problem.work
    pinned = ", ".join(f"{name}={value}" for name, value in work.pins.items())
    return (
        f"No layout divides {work.sizes.layers} layers, {work.sizes.heads} heads and a batch of"
        f" {work.global_batch} sequences among these devices" + (f" with {pinned}" if pinned else "")
    )


def _too_large(problem: Problem, seen: SearchResult) -> str:
    assert seen.smallest is not None
    device, needed = seen.smallest.case.device, format_bytes(seen.smallest.memory.high)
    return (
        f"A model of {format_count(problem.work.sizes.parameters)} weights fits nowhere: its smallest layout"
        f" needs up to {needed} on each {device.name}, which has {format_bytes(device.memory_bytes)}"
    )


def _too_late(problem: Problem, seen: SearchResult) -> str:
    if not seen.runs and seen.hopeless is not None:
        often = format_seconds(seen.hopeless.goodput.mtbf_s)
        return f"The run would never end: {seen.hopeless.devices} devices fail every {often}"
    quickest = min(run.seconds for run in seen.runs)
    left = problem.limits.deadline_s or 0.0
    return (
        f"The deadline cannot be kept: the quickest layout takes {format_seconds(quickest)}, and there are"
        f" {format_seconds(left)}"
    )


def _too_dear(problem: Problem, seen: SearchResult) -> str:
    limits = problem.limits
    priced = [run for run in seen.runs if run.dollars is not None]
    if not priced:
        return "The budget cannot be checked: no price is known for these devices; give --price"
    early = [run for run in priced if limits.late(run) <= 1]
    cheapest = min(early or priced, key=lambda run: run.dollars or 0.0)
    where = " of those that are in time" if limits.deadline_s is not None and early else ""
    return (
        f"The budget of {format_dollars(limits.dollars)} is too small: the cheapest layout{where} costs about"
        f" {format_dollars(cheapest.dollars)}"
    )
