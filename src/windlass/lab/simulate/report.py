"""The report of a simulation. The same seed gives the same report, except for the part `measured`."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from windlass.lab.simulate.samples import FleetSample
from windlass.lab.simulate.scenario import Scenario
from windlass.lab.simulate.sim_job import SimJob
from windlass.lab.simulate.simulation import Simulation
from windlass.lab.simulate.usage import KINDS
from windlass.spec.protocol.progress import Report, silent

RESOURCES = ("cores", "memory", "gpus")
SHORT_S = 600.0
"""Minimum job length for the slowdown: a job of a second that waits a minute does not count sixtyfold."""
LARGE = 32
"""Number of members from which a gang counts as large."""


def simulate(scenario: Scenario, report: Report = silent) -> dict[str, Any]:
    """Run a scenario and return its report; with a hostile tenant, also run it without, and compare."""
    began, began_cpu = time.perf_counter(), _cpu_s()
    simulation = Simulation(scenario)
    with _without_collection():
        simulation.run(report)
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - began_cpu
    found = report_of(simulation)
    found["measured"] = measured(simulation, wall_s, cpu_s)
    if scenario.overrides.hostile:
        found["harm"] = _harm(found, scenario, report)
    return found


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection: it takes a tenth of the time, and all objects are in use."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def report_of(simulation: Simulation) -> dict[str, Any]:
    scenario, ledger = simulation.scenario, simulation.ledger
    lives = list(simulation.lives.values())
    jobs = [life for life in lives if not life.job.endless]
    open_ = [entry for entry in ledger.open.values() if not entry.need.endless]
    return {
        "scenario": {
            "name": scenario.name,
            "nodes": scenario.nodes,
            "hours": scenario.hours,
            "seed": scenario.seed,
        },
        "jobs": {
            "submitted": len(jobs),
            "done": sum(life.ended_s is not None for life in jobs),
            "running": sum(entry.phase != "queued" for entry in open_),
            "waiting": sum(entry.phase == "queued" for entry in open_),
            "lost": simulation.lost(),
            "run_twice": simulation.backend.twice,
        },
        "use": _use(simulation),
        "convergence": _convergence(simulation),
        "waits": _waits(jobs, simulation.end_s),
        "preemptions": ledger.moved["preempting"],
        "fairness": _fairness(simulation),
        "tenants": _tenants(simulation, jobs),
        "services": _services(simulation),
        "samples": [_sample(each) for each in simulation.samples.seen],
    }


def _use(simulation: Simulation) -> dict[str, Any]:
    """Return the shares of the fleet's time; they add up to 1 for each resource."""
    whole = simulation.fleet.whole * simulation.scenario.end_s
    parts: dict[str, Any] = {}
    for at, name in enumerate(RESOURCES):
        sums = zip(KINDS, simulation.tally.sum[:, at], strict=True)
        parts[name] = {kind: _round(sum_ / whole[at]) for kind, sum_ in sums}
        parts[name]["idle_in_vain"] = _round(simulation.samples.in_vain[at] / whole[at])
    return parts


def _convergence(simulation: Simulation) -> dict[str, Any]:
    """Return the seconds from a failure until the affected jobs ran as requested again."""
    lives = simulation.lives.values()
    open_ = sum(life.broken_s is not None and life.ended_s is None for life in lives)
    return {
        "failures": simulation.failures,
        "jobs_hit": len(simulation.backend.healed_s) + open_,
        **_spread(simulation.backend.healed_s),
        "open": open_,
    }


def _waits(jobs: Sequence[SimJob], end_s: float) -> dict[str, Any]:
    """Return seconds in the queue, by priority; for waiting jobs, so far."""
    groups: dict[str, list[float]] = defaultdict(list)
    for life in jobs:
        waited_s = (end_s if life.admitted_s is None else life.admitted_s) - life.submitted_s
        groups[f"priority {life.job.priority}"].append(waited_s)
        if life.job.members >= LARGE and life.job.min_members is None:
            groups[f"gangs of {LARGE} and more"].append(waited_s)
    return {name: _spread(waits) for name, waits in sorted(groups.items())}


def _fairness(simulation: Simulation) -> dict[str, Any]:
    """Return Jain's index over the weighted dominant shares of tenants that wanted more, if several did.

    1: shares are proportional to the weights; 1/n: one of n tenants has all.
    """
    tenants = simulation.scenario.tenants
    found = []
    for sample in simulation.samples.seen:
        wanting = sorted(sample.wanting)
        if len(wanting) > 1:
            found.append(jain([sample.shares.get(t, 0.0) / tenants[t].weight for t in wanting]))
    mean = _round(sum(found) / len(found)) if found else None
    return {"jain": mean, "worst": _round(min(found)) if found else None, "looks": len(found)}


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness (Jain, Chiu, Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _tenants(simulation: Simulation, jobs: Sequence[SimJob]) -> dict[str, Any]:
    by_tenant: dict[str, list[SimJob]] = defaultdict(list)
    for life in jobs:
        by_tenant[life.job.tenant].append(life)
    return {
        name: {
            "weight": tenant.weight,
            "jobs": len(by_tenant[name]),
            "done": sum(life.ended_s is not None for life in by_tenant[name]),
            "share": _mean(sample.shares.get(name, 0.0) for sample in simulation.samples.seen),
            "wait": _spread(_waited(by_tenant[name], simulation.end_s)),
            "slowdown": _spread(_slowdowns(by_tenant[name])),
        }
        for name, tenant in simulation.scenario.tenants.items()
    }


def _waited(lives: Iterable[SimJob], end_s: float) -> list[float]:
    return [(end_s if life.admitted_s is None else life.admitted_s) - life.submitted_s for life in lives]


def _slowdowns(lives: Iterable[SimJob]) -> list[float]:
    """Return the slowdown of each job: time since submission over its work."""
    return [
        max(1.0, (life.ended_s - life.submitted_s) / max(life.job.work_s, SHORT_S))
        for life in lives
        if life.ended_s is not None
    ]


def _services(simulation: Simulation) -> dict[str, Any]:
    services = simulation.services
    wanted_s = sum(service.wanted_s for service in services)
    missed_s = sum(service.missed_s for service in services)
    return {
        "number": len(services),
        "max_replicas": sum(service.max_replicas for service in services),
        "changes": sum(service.changes for service in services),
        "answered": _round(1 - missed_s / wanted_s) if wanted_s else None,
    }


def _harm(found: dict[str, Any], scenario: Scenario, report: Report) -> dict[str, Any]:
    """Compare the waits of the other tenants with and without the hostile tenant."""
    others = {name: tenant for name, tenant in scenario.tenants.items() if name != "hostile"}
    quiet = replace(scenario, tenants=others, overrides=replace(scenario.overrides, hostile=False))
    without = Simulation(quiet)
    with _without_collection():
        without.run(lambda progress: report(replace(progress, stage="without")))
    before = report_of(without)["tenants"]
    return {
        name: {
            "wait_p50": [before[name]["wait"]["p50"], found["tenants"][name]["wait"]["p50"]],
            "wait_p99": [before[name]["wait"]["p99"], found["tenants"][name]["wait"]["p99"]],
            "slowdown_p50": [before[name]["slowdown"]["p50"], found["tenants"][name]["slowdown"]["p50"]],
            "share": [before[name]["share"], found["tenants"][name]["share"]],
        }
        for name in others
    }


def measured(simulation: Simulation, wall_s: float, cpu_s: float) -> dict[str, Any]:
    """The time and CPU of this simulation: the only part that differs from run to run."""
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "faster_than_time": round(simulation.scenario.end_s / wall_s),
        "events": simulation.events.count,
        "steps": simulation.steps,
        "decide_ms": _milliseconds(simulation.decide_s),
        "step_ms": _milliseconds(simulation.step_s),
    }


def _milliseconds(seconds: Sequence[float]) -> dict[str, float | int | None]:
    return _spread([each * 1e3 for each in seconds])


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    ordered = sorted(values)
    return {
        "number": len(ordered),
        "mean": _round(sum(ordered) / len(ordered)) if ordered else None,
        "p50": _at(ordered, 0.5),
        "p99": _at(ordered, 0.99),
        "max": _round(ordered[-1]) if ordered else None,
    }


def _at(ordered: Sequence[float], part: float) -> float | None:
    """Return a quantile: the smallest value that this share of the values does not exceed."""
    return _round(ordered[max(0, math.ceil(part * len(ordered)) - 1)]) if ordered else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return _round(sum(known) / len(known)) if known else None


def _sample(sample: FleetSample) -> dict[str, Any]:
    return {
        "hour": _round(sample.hour),
        "waiting": sample.waiting,
        "running": sample.running,
        "useful": _round(sample.useful),
        "idle": _round(sample.idle),
        "down": _round(sample.down),
        "shares": {tenant: _round(share) for tenant, share in sample.shares.items()},
        "wanting": sorted(sample.wanting),
    }


def _round(value: float) -> float:
    return round(float(value), 4)
