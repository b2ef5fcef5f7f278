"""The comparison of the asynchronous pipeline with 1F1B, in short."""

import pytest

from windlass.lab.torch.async_bench import SMOOTHED, BenchRounds, bench_async, figures_of, smoothed, steps_to


def falling(slope: float, steps: int) -> list[float]:
    return [10.0 - slope * step for step in range(steps)]


def test_figures_weigh_speed_against_loss() -> None:
    sync = BenchRounds(seconds=[4.0, 4.0], idle=[0.2, 0.2], losses=falling(0.02, 200), validation=6.0)
    flow = BenchRounds(seconds=[2.0, 2.0], idle=[0.0, 0.0], losses=falling(0.01, 200), validation=8.0)
    figures = figures_of({"1f1b": sync, "asynchronous": flow}, tokens_per_step=100)
    assert figures["speed_ratio"] == 2.0
    assert figures["1f1b_tokens_per_s"] == pytest.approx(2500)
    assert figures["asynchronous_steps_to_loss"] == 200
    assert figures["1f1b_steps_to_loss"] == pytest.approx(100, abs=SMOOTHED)
    assert figures["time_to_loss_ratio"] == pytest.approx(2.0 * figures["1f1b_steps_to_loss"] / 200)


def test_the_first_round_warms_up_and_does_not_count() -> None:
    course = BenchRounds(seconds=[100.0, 2.0, 2.0], idle=[0.9, 0.1, 0.1], losses=[5.0] * 60)
    assert course.step_s == pytest.approx(0.1)


def test_a_loss_is_smoothed_over_the_newest_steps() -> None:
    assert smoothed([4.0, 2.0]) == [4.0, 3.0]
    assert smoothed([8.0] * 30 + [2.0] * SMOOTHED)[-1] == 2.0


def test_steps_to_a_loss_are_counted_from_one() -> None:
    assert steps_to(4.0, [4.0, 3.0]) == 1


@pytest.mark.long
@pytest.mark.slow
def test_both_schedules_learn_the_same_course_in_turns() -> None:
    result = bench_async(rounds=2, steps=8)
    one, other = result["losses"]["1f1b"], result["losses"]["asynchronous"]
    assert len(one) == len(other) == 16
    assert one[0] == other[0]
    assert one != other
    assert 0.9 < result["figures"]["loss_ratio"] < 1.1
