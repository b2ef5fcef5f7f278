"""How batch, learning rate, warm-up and steps follow the number of replicas."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.hyperparameters import Effective, adapted, choose_micro, effective, micro_batches_of
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import BadInput
from windlass.spec.job import Job, Train
from windlass.spec.layout import Layout, check_layout
from windlass.spec.run import Run

BASE = Effective(batch_sequences=8, micro_batch_sequences=4, learning_rate=1e-3, warmup_steps=100, steps=1000)
scalings = st.sampled_from(["constant", "linear", "sqrt"])


def scaled(scaling: str, **layout: int) -> Effective:
    return effective(Train.model_validate({"scaling": scaling}), BASE, Layout.model_validate(layout))


def planned(**train: object) -> Run:
    job = Job.model_validate(
        {"model": {"layers": 4, "width": 64}, "train": {"steps": 1000, "batch_sequences": 8, **train}}
    )
    corpus = CorpusFacts(str(Path("corpus")), "digest", 512, 1_000_000, 100_000)
    return plan_run(job, corpus, MachineFacts(2, 8 << 30, 1e11, False))


def test_by_default_replicas_change_nothing_but_the_share_of_each() -> None:
    found = scaled("constant", dp=4)
    assert found == Effective(8, 2, 1e-3, 100, 1000)


def test_linear_scaling_multiplies_batch_and_rate_and_keeps_the_tokens() -> None:
    assert scaled("linear", dp=2, sharded=2) == Effective(32, 4, 4e-3, 25, 250)


def test_root_scaling_raises_the_rate_by_the_root() -> None:
    assert scaled("sqrt", dp=4) == Effective(32, 4, 2e-3, 25, 250)


def test_only_replicas_count_as_workers() -> None:
    assert scaled("linear", tp=4).batch_sequences == BASE.batch_sequences


@given(scalings, st.integers(1, 16))
def test_tokens_stay_the_same_within_one_step(scaling: str, replicas: int) -> None:
    found = scaled(scaling, dp=replicas)
    before, after = BASE.steps * BASE.batch_sequences, found.steps * found.batch_sequences
    assert 0 <= after - before < found.batch_sequences


def test_a_stated_number_of_micro_batches_decides_their_size() -> None:
    assert choose_micro(Train(), Layout(dp=2, micro_batches=8), 32, 16) == 2


def test_a_stated_size_of_micro_batches_is_kept_where_it_divides_the_share() -> None:
    train = Train(batch_sequences=32, micro_batch_sequences=8)
    assert choose_micro(train, Layout(dp=2), 32, 8) == 8
    assert choose_micro(train, Layout(dp=8), 32, 8) == 4


def test_a_pipeline_gets_enough_micro_batches_to_stay_full() -> None:
    layout = Layout(pp=2)
    assert micro_batches_of(layout, 32, choose_micro(Train(), layout, 32, 32)) == 8


def test_a_small_batch_gives_a_pipeline_as_many_micro_batches_as_it_can() -> None:
    assert choose_micro(Train(), Layout(pp=4), 6, 32) == 1


def test_unequal_shares_are_cut_alike() -> None:
    assert choose_micro(Train(), Layout(dp=2, shares=(3, 1)), 32, 32) == 8


@given(
    dp=st.integers(1, 4),
    pp=st.integers(1, 3),
    schedule=st.sampled_from(["1f1b", "interleaved", "zero-bubble", "dualpipe-v"]),
    share=st.integers(1, 48),
    most=st.integers(1, 16),
)
def test_a_chosen_micro_batch_divides_the_share_and_suits_the_schedule(
    dp: int, pp: int, schedule: str, share: int, most: int
) -> None:
    virtual = 2 if pp > 1 and schedule != "1f1b" else 1
    layout = Layout.model_validate({"dp": dp, "pp": pp, "schedule": schedule, "virtual": virtual})
    size = choose_micro(Train(), layout, share * dp, most)
    assert share % size == 0
    assert size <= most
    run = planned()
    try:
        check_layout(layout, run.shape.model_copy(update={"layers": 6}), share * dp)
    except BadInput:
        return  # not even one sequence at a time suits the schedule
    check_layout(layout, run.shape.model_copy(update={"layers": 6}), share * dp, size)


def test_a_stated_size_that_the_schedule_cannot_run_is_refused() -> None:
    train = Train(batch_sequences=32, micro_batch_sequences=16)
    layout = Layout(pp=2, virtual=2, schedule="dualpipe-v")
    size = choose_micro(train, layout, 32, 16)
    with pytest.raises(BadInput, match="needs at least 4 micro-batches, not 2"):
        check_layout(layout, planned().shape, 32, size)


def test_going_on_with_more_replicas_changes_nothing_under_constant_scaling() -> None:
    run = planned()
    found = adapted(run, Layout(dp=4), step=300)
    assert found.layout == Layout(dp=4)
    assert (found.steps, found.batch_sequences, found.learning_rate) == (1000, 8, run.learning_rate)
    assert found.micro_batch_sequences == 2


def test_the_steps_left_follow_from_the_samples_left() -> None:
    run = planned(scaling="linear")
    found = adapted(run, Layout(dp=2), step=300)
    assert found.steps == 300 + 350
    assert found.batch_sequences == 16
    assert found.learning_rate == pytest.approx(2 * run.learning_rate)


def test_a_warm_up_that_is_over_stays_and_another_continues() -> None:
    run = planned(scaling="linear", warmup_steps=100)
    assert adapted(run, Layout(dp=2), step=300).warmup_steps == 100
    assert adapted(run, Layout(dp=2), step=40).warmup_steps == 40 + 30


def test_a_batch_that_cannot_shrink_to_fewer_replicas_is_refused() -> None:
    run = planned(scaling="linear", batch_sequences=4).model_copy(update={"layout": Layout(dp=3)})
    with pytest.raises(BadInput, match="a batch of 4 sequences of 3 replicas cannot become one of 2"):
        adapted(run, Layout(dp=2), step=10)


@given(scalings, st.integers(0, 999), st.integers(1, 8), st.integers(1, 8))
def test_going_there_and_back_loses_no_samples(scaling: str, step: int, there: int, back: int) -> None:
    run = planned(scaling=scaling, batch_sequences=840)
    run = run.model_copy(update={"layout": Layout(dp=there)})
    other = adapted(run, Layout(dp=back), step=step)
    again = adapted(other, Layout(dp=there), step=step)
    assert again.batch_sequences == run.batch_sequences
    assert again.learning_rate == pytest.approx(run.learning_rate)
    assert run.steps <= again.steps <= run.steps + math.ceil(back / there)
