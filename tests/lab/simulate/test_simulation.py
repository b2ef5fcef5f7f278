"""Small fleets, whole days: what must hold whatever chance brings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.control.plane.queued_job import OVER
from windlass.control.scheduler.capacity import vector
from windlass.lab.simulate.report import report_of, simulate
from windlass.lab.simulate.scenario import Scenario, scenario_of
from windlass.lab.simulate.simulation import Simulation
from windlass.lab.simulate.usage import DOWN, IDLE, LOST, USEFUL


def played(name: str, nodes: int = 60, hours: float = 3.0, seed: int = 1) -> Simulation:
    simulation = Simulation(scenario_of(name, nodes, hours, seed))
    simulation.run()
    return simulation


@settings(max_examples=6)
@given(st.integers(0, 10_000), st.sampled_from(("calm", "day", "bad", "hostile")), st.integers(20, 120))
def test_no_job_is_lost_or_runs_twice_and_no_time_is_forgotten(seed: int, name: str, nodes: int) -> None:
    simulation = played(name, nodes, 2.0, seed)  # the books of the fleet are compared in every step
    assert simulation.lost() == 0
    assert simulation.backend.twice == 0
    whole = simulation.fleet.whole * simulation.scenario.end_s
    np.testing.assert_allclose(simulation.tally.sum.sum(axis=0), whole, rtol=1e-6)
    assert (simulation.tally.sum >= -1e-6 * whole).all()


@settings(max_examples=3)
@given(st.integers(0, 10_000))
def test_useful_time_is_the_work_that_was_done(seed: int) -> None:
    simulation = played("bad", 50, 3.0, seed)
    done = np.zeros(3)
    for life in simulation.lives.values():
        life.advance(simulation.end_s)
        done += np.asarray(vector(life.job.need)) * life.job.members * life.progress_s
    np.testing.assert_allclose(simulation.tally.sum[USEFUL], done, rtol=1e-6)


def test_the_same_seed_gives_the_same_report_and_another_another() -> None:
    one, again, other = (report_of(played("bad", 50, 2.0, seed)) for seed in (3, 3, 4))
    assert one == again
    assert one["jobs"] != other["jobs"]


def test_a_calm_fleet_comes_to_rest() -> None:
    """Whatever was asked for runs, or is done; nobody waits where there is room."""
    report = report_of(played("calm", 80, 6.0))
    assert report["convergence"]["failures"] == 0
    assert report["waits"]["priority 0"]["p50"] <= 60
    assert report["use"]["gpus"]["lost"] == 0
    assert report["use"]["gpus"]["idle_in_vain"] < 0.01


def test_failures_cost_work_and_machines_and_are_overcome() -> None:
    simulation = played("bad", 100, 6.0)
    report = report_of(simulation)
    assert report["convergence"]["failures"] > 3
    assert report["convergence"]["number"] > 3
    assert report["convergence"]["p50"] < 600
    for kind in (LOST, DOWN, IDLE):
        assert simulation.tally.sum[kind, 2] > 0


def test_what_is_recorded_is_what_runs() -> None:
    simulation = played("day")
    open_ = simulation.ledger.open.values()
    placed = {entry.group_key for entry in open_ if entry.phase not in ("queued", *OVER)}
    running = {key for key, run in simulation.backend.runs.items() if run.phase != "over"}
    assert running <= placed


def test_a_fleet_that_loses_everything_recovers() -> None:
    simulation = Simulation(scenario_of("calm", 40, 4.0, 1))
    rows = range(simulation.fleet.size)
    simulation.events.after(3600.0, simulation._take_down, rows, 1800.0)
    simulation.run()
    report = report_of(simulation)
    assert report["convergence"]["jobs_hit"] > 5
    assert report["convergence"]["open"] == 0
    assert report["jobs"]["lost"] == report["jobs"]["run_twice"] == 0


def test_services_get_their_replicas_although_the_fleet_is_full() -> None:
    crowded = _crowded(scenario_of("day", 60, 2.0, 1))
    simulation = Simulation(crowded)
    simulation.run()
    report = report_of(simulation)
    assert report["jobs"]["waiting"] > 0
    assert report["services"]["answered"] > 0.9


def _crowded(scenario: Scenario) -> Scenario:
    tenants = {name: replace(tenant, load=tenant.load * 4) for name, tenant in scenario.tenants.items()}
    return replace(scenario, tenants=tenants)


@pytest.mark.slow
def test_a_hostile_tenant_gets_no_more_than_the_others_leave() -> None:
    report = simulate(scenario_of("hostile", 60, 5.0, 1))
    assert report["jobs"]["lost"] == report["jobs"]["run_twice"] == 0
    harm = report["harm"]
    assert set(harm) == {"research", "product", "students", "batch"}
    for name in ("product", "students"):
        assert harm[name]["share"][1] > 0.7 * harm[name]["share"][0]


@pytest.mark.long
@pytest.mark.slow
def test_a_thousand_machines_for_two_hours() -> None:
    report = report_of(played("bad", 1000, 2.0))
    assert report["jobs"]["lost"] == report["jobs"]["run_twice"] == 0
    assert report["jobs"]["done"] > 100
    parts = report["use"]["gpus"]
    assert sum(part for kind, part in parts.items() if kind != "idle_in_vain") == pytest.approx(1.0, abs=1e-3)
