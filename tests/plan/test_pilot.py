"""Pilots cost what they may, look like the run that they stand for, and tell how it ends if the law holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.plan.local.machine import MachineFacts
from windlass.plan.loss import Law
from windlass.plan.pilot import MIN_STEPS, answer, design, fixed_job, pilot_job, run_flops
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.run import Run

MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts(
    path="c", digest="d", vocabulary=2048, train_tokens=90_000_000, validation_tokens=400_000
)
LAW = Law(
    sharpness=2.0,
    floor=1.5,
    size_scale=25.0,
    size_power=0.27,
    data_scale=300.0,
    data_power=0.36,
    ceiling=math.log(2048),
)


def planned(**tables: object) -> Run:
    return plan_run(Job.model_validate(tables), CORPUS, MACHINE)


def run_of(family: str = "llama", steps: int = 2000) -> Run:
    return planned(
        model={"family": family, "layers": 4, "width": 128, "heads": 4, "context": 128},
        train={"steps": steps, "batch_sequences": 32},
    )


@settings(deadline=None)
@given(
    st.sampled_from(["llama", "gpt2", "bert"]),
    st.sampled_from([48, 64, 100, 128, 384]),
    st.integers(1, 12),
    st.floats(0.08, 0.5),
)
def test_pilots_cost_their_share_and_each_has_enough_steps(
    family: str, width: int, layers: int, share: float
) -> None:
    model = {"family": family, "layers": layers, "width": width, "context": 64}
    run = planned(model=model, train={"steps": 4000, "batch_sequences": 16})
    pilots = design(run, share)
    assert sum(pilot.flops for pilot in pilots) == pytest.approx(share * run_flops(run), rel=0.05)
    assert all(pilot.steps >= MIN_STEPS and pilot.warmup_steps < pilot.steps for pilot in pilots)
    assert all(pilot.shape.matrix_parameters <= run.shape.matrix_parameters for pilot in pilots)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_pilots_job_is_planned_as_the_pilot(family: str) -> None:
    run = run_of(family)
    for number, pilot in enumerate(design(run, 0.1), 1):
        small = plan_run(pilot_job(run.job, pilot, number), CORPUS, MACHINE)
        assert small.shape == pilot.shape
        assert (small.steps, small.batch_sequences) == (pilot.steps, pilot.batch_sequences)
        assert small.steps * small.tokens_per_step == pilot.tokens


def test_grouped_keys_stay_divisors_of_the_heads() -> None:
    model = {"layers": 6, "width": 192, "heads": 6, "kv_heads": 2, "context": 64}
    run = planned(model=model, train={"steps": 4000, "batch_sequences": 16})
    assert {(p.shape.heads, p.shape.kv_heads) for p in design(run, 0.2)} == {(6, 2), (3, 1), (2, 1)}  # type: ignore[union-attr]


def test_a_run_for_some_time_becomes_one_of_certain_steps() -> None:
    run = planned(train={"time": 60.0})
    again = plan_run(fixed_job(run), CORPUS, MACHINE)
    assert (again.steps, again.time_s) == (run.steps, None)
    assert (again.shape, again.batch_sequences) == (run.shape, run.batch_sequences)
    assert again.learning_rate == run.learning_rate


def test_a_run_too_short_for_pilots_says_so() -> None:
    with pytest.raises(BadInput, match="tell nothing"):
        design(run_of(steps=100), 0.05)


def test_pilots_that_follow_a_law_report_how_the_run_ends() -> None:
    run = run_of(steps=4000)
    pilots = design(run, 0.24)
    losses = [LAW.loss(pilot.shape.matrix_parameters, pilot.tokens) for pilot in pilots]
    found = answer(run, CORPUS.train_tokens, pilots, losses)
    true = LAW.loss(run.shape.matrix_parameters, run.steps * run.tokens_per_step)
    assert found.estimate.loss == pytest.approx(true, rel=0.03)
    assert found.estimate.low <= true <= found.estimate.high


def test_more_compute_buys_a_smaller_loss_and_no_smaller_model() -> None:
    run = run_of(steps=4000)
    pilots = design(run, 0.1)
    losses = [LAW.loss(pilot.shape.matrix_parameters, pilot.tokens) for pilot in pilots]
    found = answer(run, CORPUS.train_tokens, pilots, losses)
    assert found.choices[0].estimate.loss <= found.estimate.loss
    expected = [choice.estimate.loss for choice in found.choices]
    sizes = [choice.shape.parameters for choice in found.choices]
    assert expected == sorted(expected, reverse=True)
    assert sizes == sorted(sizes)
