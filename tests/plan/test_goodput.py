import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.goodput import Failures, best_interval, goodput, useful_share
from windlass.spec.errors import BadInput

MINUTE = 60.0
HOUR = 3600.0


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_best_interval_is_that_of_the_paper(mtbf_s: float, minutes: float) -> None:
    """Daly 2006, figures 3 to 5: a dump of 5 minutes."""
    assert best_interval(5 * MINUTE, mtbf_s) / MINUTE == pytest.approx(minutes, rel=0.01)


@given(st.floats(0.01, 100), st.floats(1e6, 1e9))
def test_for_a_short_stall_it_is_youngs_root(stall_s: float, mtbf_s: float) -> None:
    assert best_interval(stall_s, mtbf_s) == pytest.approx(math.sqrt(2 * stall_s * mtbf_s), rel=0.02)


@given(st.floats(0.1, 1e4), st.floats(1, 1e7), st.floats(0.2, 5))
def test_no_other_interval_is_more_useful(stall_s: float, mtbf_s: float, factor: float) -> None:
    best = best_interval(stall_s, mtbf_s)
    other = useful_share(best * factor, stall_s, 10.0, mtbf_s)
    assert useful_share(best, stall_s, 10.0, mtbf_s) >= other * (1 - 1e-9)


@pytest.mark.parametrize(
    ("interval_s", "stall_s", "restart_s", "mtbf_s"),
    [(1200.0, 60.0, 300.0, 10_000.0), (300.0, 30.0, 60.0, 600.0), (5000.0, 10.0, 900.0, 20_000.0)],
)
def test_the_useful_share_is_what_a_simulation_finds(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float
) -> None:
    found = simulated_share(interval_s, stall_s, restart_s, mtbf_s, intervals=40_000)
    assert found == pytest.approx(useful_share(interval_s, stall_s, restart_s, mtbf_s), rel=0.02)


def simulated_share(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float, *, intervals: int
) -> float:
    """Live through failures one by one: each throws back to the last checkpoint, a restart may fail too."""
    rng = random.Random(5)
    clock, done, need, until_failure = 0.0, 0, interval_s + stall_s, rng.expovariate(1 / mtbf_s)
    while done < intervals:
        if until_failure >= need:
            clock, until_failure, done = clock + need, until_failure - need, done + 1
            need = interval_s + stall_s
        else:
            clock, until_failure = clock + until_failure, rng.expovariate(1 / mtbf_s)
            need = restart_s + interval_s + stall_s
    return intervals * interval_s / clock


def test_sixteen_thousand_devices_fail_every_three_hours_and_nine_tenths_of_their_time_are_useful() -> None:
    """Llama 3 (arXiv:2407.21783, section 3.3.4): 419 failures in 54 days, over 90% effective."""
    found = goodput(Failures(), 16_384, step_s=10.0, stall_s=10.0, load_s=60.0)
    assert found.mtbf_s / HOUR == pytest.approx(3.09, abs=0.01)
    assert 0.88 < found.useful < 0.96
    assert found.expected_failures(54 * 86400 * found.useful) == pytest.approx(419, rel=0.01)


def test_an_elastic_run_loses_less_than_one_that_goes_back_to_its_checkpoint() -> None:
    found = goodput(Failures(), 1024, step_s=5.0, stall_s=20.0, replicas=16)
    assert found.useful < found.elastic < 1
    assert found.seconds(1000.0, elastic=True) < found.seconds(1000.0)


def test_a_checkpoint_begins_when_the_one_before_is_whole() -> None:
    often = goodput(Failures(), 16_384, step_s=5.0, stall_s=0.01)
    slow = goodput(Failures(), 16_384, step_s=5.0, stall_s=0.01, lag_s=300.0)
    assert often.interval_s < 300 == slow.interval_s
    assert slow.useful < often.useful


def test_one_replica_has_no_other_to_continue_on() -> None:
    found = goodput(Failures(), 64, step_s=5.0, stall_s=20.0, replicas=1)
    assert found.elastic == found.useful


def test_a_run_that_never_gets_through_an_interval_takes_for_ever() -> None:
    found = goodput(Failures(mtbf_s=1.0), 1000, step_s=10.0, stall_s=1.0)
    assert found.useful == 0
    assert found.seconds(1.0) == math.inf


@given(st.integers(1, 100_000))
def test_more_devices_never_make_time_more_useful(devices: int) -> None:
    few, many = (goodput(Failures(), n, step_s=1.0, stall_s=5.0) for n in (devices, devices + 1))
    assert many.useful <= few.useful
    assert many.interval_s <= few.interval_s


@pytest.mark.parametrize(
    "wrong", [{"mtbf_s": 0.0}, {"mtbf_s": -1.0}, {"restart_s": -1.0}, {"mtbf_s": math.nan}]
)
def test_failures_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="must be"):
        Failures(**wrong)
