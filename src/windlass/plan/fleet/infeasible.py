"""What is in the way when there is no plan: the constraint that no layout keeps, and what would help."""

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


def no_solution(question: Problem, seen: SearchResult) -> Infeasible:
    """Say what is in the way, and try what might help."""
    binding = binding_of(question, seen)
    return Infeasible(binding, sentence(question, binding, seen), tuple(fixes(question, binding, seen)))


def binding_of(question: Problem, seen: SearchResult) -> Binding:
    """Return the constraint that no layout keeps; of deadline and budget the one that is further off.

    Where each can be kept but not both, money is in the way of those that are in time.
    """
    if not seen.outlooks and seen.hopeless is not None:
        return "time"
    if not seen.outlooks:
        return "memory" if seen.smallest is not None else "divisibility"
    limits = question.limits
    late, dear = (min(map(over, seen.outlooks)) for over in (limits.late, limits.dear))
    return "time" if late > max(1.0, dear) else "money"


def sentence(question: Problem, binding: Binding, seen: SearchResult) -> str:
    """Say what is in the way, with the two numbers that do not agree."""
    if binding == "divisibility":
        return _indivisible(question)
    if binding == "memory":
        return _too_large(question, seen)
    return _too_late(question, seen) if binding == "time" else _too_dear(question, seen)


def _indivisible(question: Problem) -> str:
    work = question.work
    pinned = ", ".join(f"{name}={value}" for name, value in work.pins.items())
    return (
        f"No layout divides {work.sizes.layers} layers, {work.sizes.heads} heads and a batch of"
        f" {work.global_batch} sequences among these devices" + (f" with {pinned}" if pinned else "")
    )


def _too_large(question: Problem, seen: SearchResult) -> str:
    assert seen.smallest is not None
    device, needed = seen.smallest.case.device, format_bytes(seen.smallest.memory.high)
    return (
        f"A model of {format_count(question.work.sizes.parameters)} weights fits nowhere: its smallest layout"
        f" needs up to {needed} on each {device.name}, which has {format_bytes(device.memory_bytes)}"
    )


def _too_late(question: Problem, seen: SearchResult) -> str:
    if not seen.outlooks and seen.hopeless is not None:
        often = format_seconds(seen.hopeless.goodput.mtbf_s)
        return f"The run would never end: {seen.hopeless.devices} devices fail every {often}"
    quickest = min(outlook.seconds for outlook in seen.outlooks)
    left = question.limits.deadline_s or 0.0
    return (
        f"The deadline cannot be kept: the quickest layout takes {format_seconds(quickest)}, and there are"
        f" {format_seconds(left)}"
    )


def _too_dear(question: Problem, seen: SearchResult) -> str:
    limits = question.limits
    priced = [outlook for outlook in seen.outlooks if outlook.dollars is not None]
    if not priced:
        return "The budget cannot be checked: nobody says a price for these devices; give --price"
    early = [outlook for outlook in priced if limits.late(outlook) <= 1]
    cheapest = min(early or priced, key=lambda outlook: outlook.dollars or 0.0)
    where = " of those that are in time" if limits.deadline_s is not None and early else ""
    return (
        f"The budget of {format_dollars(limits.dollars)} is too small: the cheapest layout{where} costs about"
        f" {format_dollars(cheapest.dollars)}"
    )
