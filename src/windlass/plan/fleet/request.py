"""A plan request, from the command line or over HTTP: parsed into a Problem and answered.

Input: a job, a fleet, and limits as people write them ("3d", "2.5M", "bfloat16,float8"). Output: the plan of
docs/formats/plan.md. A refusal names what is wrong by its option of `windlass plan`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from windlass.plan.cost.fitted_constants import documented
from windlass.plan.cost.step_config import Precision, Sizes
from windlass.plan.fleet.answer import answer
from windlass.plan.fleet.constraints import PlanLimits, parse_budget, parse_deadline
from windlass.plan.fleet.explore import Objective
from windlass.plan.fleet.fleet_search import Problem, SearchName
from windlass.plan.fleet.layouts import precisions
from windlass.plan.fleet.pools import DevicePool, pools_of
from windlass.plan.fleet.work import TrainingWork, parse_pins, work_of
from windlass.spec.errors import AskedWrongly, BadInput, did_you_mean
from windlass.spec.fleet import Fleet
from windlass.spec.job import Job
from windlass.spec.protocol.progress import Report, silent


@dataclass(frozen=True)
class PlanRequest:
    """All options of a request; None leaves a choice to the planner."""

    job: Job
    fleet: Fleet
    sizes: Sizes | None = None
    deadline: str | None = None
    budget: str | None = None
    objective: Objective | None = None
    precision: str | None = None
    software: str | None = None
    layout: str | None = None
    search: SearchName = "exhaustive"
    top: int = 5
    more: int = 0


def planned(request: PlanRequest, now: datetime, report: Report = silent) -> dict[str, Any]:
    """Return the plan, or why there is none."""
    problem = problem_of(request, now)
    begin = time.monotonic()
    facts = answer(problem, top=request.top, more=request.more, report=report)
    facts["search_s"] = round(time.monotonic() - begin, 3)
    facts["explanation"] += _ignored_layout(request.job)
    return facts


def problem_of(request: PlanRequest, now: datetime) -> Problem:
    """Parse a request; raise an error that names the wrong option."""
    if request.top < 1 or request.more < 0:
        raise AskedWrongly("--top must be at least 1, and --more at least 0")
    deadline = parse_deadline(request.deadline, now) if request.deadline is not None else None
    budget = parse_budget(request.budget) if request.budget is not None else None
    usual: Objective = "money" if deadline is not None and budget is None else "time"
    pools = pools_of(request.fleet)
    work = _work(request)
    _check_precisions(work, pools)
    return Problem(
        name=request.job.name,
        work=work,
        pools=pools,
        limits=PlanLimits(request.objective or usual, deadline, budget),
        search=request.search,
        between_bytes_s=request.fleet.network,
    )


def _work(request: PlanRequest) -> TrainingWork:
    return work_of(
        request.job,
        request.sizes,
        precisions=_precisions(request.precision),
        software=_software(request.software),
        pins=parse_pins(request.layout) if request.layout is not None else None,
    )


def _check_precisions(work: TrainingWork, pools: tuple[DevicePool, ...]) -> None:
    if not any(precisions(work, pool) for pool in pools):
        names, wanted = ", ".join(pool.device.name for pool in pools), ", ".join(work.precisions)
        known = sorted({name for pool in pools for name in pool.device.peak_flops})
        raise BadInput(
            f"{names}: does not compute in {wanted}", hint=f"--precision {','.join(known)} is possible"
        )


def _ignored_layout(job: Job) -> list[str]:
    if "layout" not in job.model_fields_set:
        return []
    return ["[layout] of the job is ignored; --layout fixes parts of it, e.g. --layout tp=8."]


def _precisions(text: str | None) -> tuple[Precision, ...]:
    if text is None:
        return ()
    known: tuple[Precision, ...] = get_args(Precision)
    for name in text.split(","):
        if name not in known:
            raise BadInput(f"--precision {name}: unknown precision", hint=did_you_mean(name, list(known)))
    return tuple(precision for precision in known if precision in text.split(","))


def _software(name: str | None) -> str | None:
    if name is not None and name not in documented():
        raise BadInput(f"--software {name}: unknown software", hint=did_you_mean(name, list(documented())))
    return name
