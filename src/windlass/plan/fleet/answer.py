"""Answers a plan request as one dictionary (docs/formats/plan.md).

    survey the fleet -> choose -> search exactly around the choice -> explain, or say which constraint fails

Start at `answer`.
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
from windlass.plan.fleet.explore import LayoutEstimate, estimate_layout
from windlass.plan.fleet.fleet_search import Problem, SearchResult, exact, fewest, survey
from windlass.plan.fleet.infeasible import no_solution
from windlass.plan.fleet.pareto import front
from windlass.plan.fleet.run_estimate import RunEstimate, estimate_run, worth
from windlass.plan.fleet.what_if import savings, with_more
from windlass.plan.loss import expected_loss
from windlass.spec.protocol.progress import Report, silent
from windlass.spec.units import format_seconds

FORMAT = "windlass-plan-1"
MAX_LAYOUTS = 32
MAX_WEIGHED = 200
"""Points beside the front that are listed: enough to draw a cloud."""


def answer(problem: Problem, *, top: int = 5, more: int = 0, report: Report = silent) -> dict[str, Any]:
    """Return the plan, or why there is none."""
    seen = survey(problem, report)
    enough = _enough(problem, seen)
    choice = seen.choice(problem.limits)
    layouts = _layouts(problem, choice, seen)[:top] if choice is not None else []
    facts = _facts(problem, seen, layouts)
    if choice is None:
        facts["no_solution"] = no_solution(problem, seen).as_dict()
        facts["ways"] = [way.as_dict() for way in _ways_out(problem, seen)]
        return facts
    first = layouts[0]
    sentences = [*explanation(problem.work, problem.limits, layouts), *enough]
    facts["explanation"] = sentences + ([with_more(problem, first, more)] if more else [])
    ways = (*savings(problem, first), *ways_to_serve(_goal(problem, first)))
    facts["ways"] = [way.as_dict() for way in ways]
    return facts


def _enough(problem: Problem, seen: SearchResult) -> list[str]:
    """Find the fewest devices of each pool that meet the deadline; add them to the survey."""
    if problem.limits.deadline_s is None:
        return []
    sentences = []
    for pool in problem.pools:
        smallest = fewest(problem, pool, seen)
        if smallest is not None:
            within = format_seconds(problem.limits.deadline_s)
            sentences.append(f"{devices_words(smallest)} would be enough to be ready within {within}.")
    return sentences


def _layouts(problem: Problem, choice: RunEstimate, seen: SearchResult) -> list[RunEstimate]:
    """Return the choice and the layouts next to it, found by the requested search."""
    if len(choice.members) > 1:
        return [choice, *sorted((o for o in seen.runs if o is not choice), key=_order(problem))]
    pool = choice.members[0].pool
    best: dict[tuple[Any, ...], LayoutEstimate] = {}
    for estimate in sorted(exact(problem, pool, seen).options, key=_lateness(problem, choice)):
        best.setdefault(_division(estimate.case), estimate)
    near = [estimate_run(problem.work, pool, estimate) for estimate in [*best.values()][:MAX_LAYOUTS]]
    return sorted(near, key=_order(problem)) or [choice]


def _lateness(problem: Problem, choice: RunEstimate) -> Callable[[LayoutEstimate], bool]:
    """Sort key: layouts in time first, if failures cost all of them the same; the sort is stable."""
    deadline_s = problem.limits.deadline_s or math.inf
    return lambda estimate: choice.goodput.seconds(choice.steps * estimate.step_s) > deadline_s


def _order(problem: Problem) -> Callable[[RunEstimate], tuple[bool, tuple[float, float]]]:
    """Sort key: layouts within the limits first, then by the objective."""
    limits = problem.limits
    return lambda seen: (not limits.keeps(seen), worth(seen, limits.objective))


def _division(case: TrainingStep) -> tuple[Any, ...]:
    """The choices that tell layouts apart; of layouts that agree in them, only the best is listed."""
    return case.tp, case.pp, case.cp, case.ep, case.sharding, case.precision


def _facts(problem: Problem, seen: SearchResult, layouts: list[RunEstimate]) -> dict[str, Any]:
    work, limits = problem.work, problem.limits
    best = front([*seen.points, *seen.runs], _costs)
    first = layouts[0] if layouts else None
    return {
        "format": FORMAT,
        "job": problem.name,
        "request": {
            "deadline_s": limits.deadline_s,
            "budget_dollars": limits.dollars,
            "objective": limits.objective,
            "search": problem.search,
        },
        "model": model_facts(work),
        "fleet": fleet_facts(problem.pools),
        "outcome": "plan" if layouts else "no solution",
        "layouts": [layout_facts(work, layout) for layout in layouts],
        "front": [point_facts(point) for point in best],
        "weighed": [point_facts(point) for point in seen.points[:MAX_WEIGHED]],
        "counted": seen.counted,
        "by_devices": [point_facts(point) for point in _by_devices(seen.runs)],
        "explanation": [],
        "no_solution": None,
        "ways": [],
        "storage": first.storage.as_dict() if first else None,
        "failures": _failures(first) if first else None,
    }


def _costs(seen: RunEstimate) -> tuple[float, float, float]:
    return seen.seconds, worth(seen, "money")[0], seen.memory_bytes


def _by_devices(runs: list[RunEstimate]) -> list[RunEstimate]:
    """The quickest run for each number of devices."""
    best: dict[int, RunEstimate] = {}
    for seen in sorted(runs, key=lambda seen: seen.seconds):
        best.setdefault(seen.devices, seen)
    return [best[devices] for devices in sorted(best)]


def _failures(run: RunEstimate) -> dict[str, float]:
    good, work_s = run.goodput, run.steps * run.step.seconds
    return {
        "mtbf_s": good.mtbf_s,
        "interval_s": good.interval_s,
        "goodput": good.useful,
        "elastic_goodput": good.elastic,
        "expected_failures": good.expected_failures(work_s),
    }


def _ways_out(problem: Problem, seen: SearchResult) -> list[Way]:
    """Other models and other ways to train that meet the limits."""
    if not seen.runs:
        return []
    return ways_to_meet(_goal(problem, min(seen.runs, key=lambda seen: seen.seconds)))


def _goal(problem: Problem, basis: RunEstimate) -> Goal:
    work, pool = problem.work, basis.members[0].pool

    def cost(seconds: float) -> tuple[float, float] | None:
        return cost_of(seconds, basis.devices, pool.device, pool.prices).dollars

    def fits(case: TrainingStep) -> bool:
        return estimate_layout(work, case, problem.predict).fits

    return Goal(
        case=basis.case,
        tokens=work.tokens,
        predict=lambda case: problem.predict.time(case).seconds,
        cost=cost,
        loss=lambda weights, tokens: expected_loss(weights, tokens, tokens, work.sizes.vocabulary),
        fits=fits,
        deadline_s=problem.limits.deadline_s,
        budget_dollars=problem.limits.dollars,
    )
