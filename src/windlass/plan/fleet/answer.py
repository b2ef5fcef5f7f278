"""Answers what a team asks before it spends money, as one dictionary (docs/formats/plan.md).

    survey the fleet -> choose -> search exactly where the choice fell -> explain, or say what is in the way

Start at answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from windlass.plan.cost.money import cost_of
from windlass.plan.cost.step_config import TrainingStep
from windlass.plan.fleet.alternatives import Goal, Way, ways_to_meet, ways_to_serve
from windlass.plan.fleet.answer_facts import fleet_facts, layout_facts, model_facts, point_facts
from windlass.plan.fleet.explain import devices_words, explanation
from windlass.plan.fleet.explore import LayoutEstimate, weigh
from windlass.plan.fleet.fleet_search import Problem, SearchResult, exact, fewest, survey
from windlass.plan.fleet.infeasible import no_solution
from windlass.plan.fleet.pareto import front
from windlass.plan.fleet.run_estimate import RunEstimate, outlook, worth
from windlass.plan.fleet.what_if import savings, with_more
from windlass.plan.loss import expected_loss
from windlass.spec.protocol.progress import Report, silent
from windlass.spec.units import format_seconds

FORMAT = "windlass-plan-1"
MAX_LAYOUTS = 32
MAX_WEIGHED = 200
"""Points beside the front that are told: enough to draw a cloud."""


def answer(question: Problem, *, top: int = 5, more: int = 0, report: Report = silent) -> dict[str, Any]:
    """Return the plan, or why there is none."""
    seen = survey(question, report)
    enough = _enough(question, seen)
    choice = seen.choice(question.limits)
    layouts = _layouts(question, choice, seen)[:top] if choice is not None else []
    facts = _facts(question, seen, layouts)
    if choice is None:
        facts["no_solution"] = no_solution(question, seen).as_dict()
        facts["ways"] = [way.as_dict() for way in _ways_out(question, seen)]
        return facts
    first = layouts[0]
    told = [*explanation(question.work, question.limits, layouts), *enough]
    facts["explanation"] = told + ([with_more(question, first, more)] if more else [])
    ways = (*savings(question, first), *ways_to_serve(_goal(question, first)))
    facts["ways"] = [way.as_dict() for way in ways]
    return facts


def _enough(question: Problem, seen: SearchResult) -> list[str]:
    """Find the fewest devices of each pool that are in time; the survey learns of them."""
    if question.limits.deadline_s is None:
        return []
    told = []
    for pool in question.pools:
        least = fewest(question, pool, seen)
        if least is not None:
            within = format_seconds(question.limits.deadline_s)
            told.append(f"{devices_words(least)} would be enough to be ready within {within}.")
    return told


def _layouts(question: Problem, choice: RunEstimate, seen: SearchResult) -> list[RunEstimate]:
    """Return the choice and those next to it, found by the search that was asked for."""
    if len(choice.members) > 1:
        return [choice, *sorted((o for o in seen.outlooks if o is not choice), key=_order(question))]
    pool = choice.members[0].pool
    best: dict[tuple[Any, ...], LayoutEstimate] = {}
    for weighed in sorted(exact(question, pool, seen).options, key=_lateness(question, choice)):
        best.setdefault(_division(weighed.case), weighed)
    near = [outlook(question.work, pool, weighed) for weighed in [*best.values()][:MAX_LAYOUTS]]
    return sorted(near, key=_order(question)) or [choice]


def _lateness(question: Problem, choice: RunEstimate) -> Callable[[LayoutEstimate], bool]:
    """Those in time first, as far as failures cost all of them the same; otherwise the order stays."""
    most = question.limits.deadline_s or math.inf
    return lambda weighed: choice.goodput.seconds(choice.steps * weighed.step_s) > most


def _order(question: Problem) -> Callable[[RunEstimate], tuple[bool, tuple[float, float]]]:
    """Those that keep to the limits first, then by the objective."""
    limits = question.limits
    return lambda seen: (not limits.keeps(seen), worth(seen, limits.objective))


def _division(case: TrainingStep) -> tuple[Any, ...]:
    """Layouts that differ in less than this are told as one, by the best of them."""
    return case.tp, case.pp, case.cp, case.ep, case.sharding, case.precision


def _facts(question: Problem, seen: SearchResult, layouts: list[RunEstimate]) -> dict[str, Any]:
    work, limits = question.work, question.limits
    best = front([*seen.points, *seen.outlooks], _costs)
    first = layouts[0] if layouts else None
    return {
        "format": FORMAT,
        "job": question.name,
        "asked": {
            "deadline_s": limits.deadline_s,
            "budget_dollars": limits.dollars,
            "objective": limits.objective,
            "search": question.search,
        },
        "model": model_facts(work),
        "fleet": fleet_facts(question.pools),
        "outcome": "plan" if layouts else "no solution",
        "layouts": [layout_facts(work, layout) for layout in layouts],
        "front": [point_facts(point) for point in best],
        "weighed": [point_facts(point) for point in seen.points[:MAX_WEIGHED]],
        "counted": seen.counted,
        "by_devices": [point_facts(point) for point in _by_devices(seen.outlooks)],
        "explanation": [],
        "no_solution": None,
        "ways": [],
        "storage": first.storage.as_dict() if first else None,
        "failures": _failures(first) if first else None,
    }


def _costs(seen: RunEstimate) -> tuple[float, float, float]:
    return seen.seconds, worth(seen, "money")[0], seen.memory_bytes


def _by_devices(outlooks: list[RunEstimate]) -> list[RunEstimate]:
    """The quickest for each number of devices."""
    best: dict[int, RunEstimate] = {}
    for seen in sorted(outlooks, key=lambda seen: seen.seconds):
        best.setdefault(seen.devices, seen)
    return [best[devices] for devices in sorted(best)]


def _failures(outlook: RunEstimate) -> dict[str, float]:
    good, work_s = outlook.goodput, outlook.steps * outlook.step.seconds
    return {
        "mtbf_s": good.mtbf_s,
        "interval_s": good.interval_s,
        "goodput": good.useful,
        "elastic_goodput": good.elastic,
        "expected_failures": good.expected_failures(work_s),
    }


def _ways_out(question: Problem, seen: SearchResult) -> list[Way]:
    """Other models and other ways to train that keep to the limits."""
    if not seen.outlooks:
        return []
    return ways_to_meet(_goal(question, min(seen.outlooks, key=lambda seen: seen.seconds)))


def _goal(question: Problem, basis: RunEstimate) -> Goal:
    work, pool = question.work, basis.members[0].pool

    def cost(seconds: float) -> tuple[float, float] | None:
        return cost_of(seconds, basis.devices, pool.device, pool.prices).dollars

    def fits(case: TrainingStep) -> bool:
        return weigh(work, case, question.predict).fits

    return Goal(
        case=basis.case,
        tokens=work.tokens,
        predict=lambda case: question.predict.time(case).seconds,
        cost=cost,
        loss=lambda weights, tokens: expected_loss(weights, tokens, tokens, work.sizes.vocabulary),
        fits=fits,
        deadline_s=question.limits.deadline_s,
        budget_dollars=question.limits.dollars,
    )
