from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windlass.plan.stragglers import (
    MIN_TOTALS,
    PaceDecision,
    Total,
    _medians_of_others,
    decide_pace,
    even_shares,
    fair_shares,
    step_s,
)

speeds = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12)

base_times = st.floats(1e-4, 10.0)
factors = st.floats(4.0, 20.0)
STEPS = 1500
Slowness = Callable[[Random, float, int], list[float]]


def steady(*typical_s: float, noise: float = 0.03, steps: int = 30, seed: int = 1) -> dict[str, list[float]]:
    random = Random(seed)
    return {
        f"w{place}": [seconds * random.lognormvariate(0, noise) for _ in range(steps)]
        for place, seconds in enumerate(typical_s)
    }


def decided(
    history: Mapping[str, Sequence[float]], batch: int = 32, slow_factor: float = 4.0
) -> PaceDecision:
    return decide_pace(history, None, batch, slow_factor=slow_factor)


def test_a_slower_worker_gets_a_smaller_share() -> None:
    pace = decided(steady(1.0, 1.0, 1.0, 2.0), batch=28)
    assert pace.shares == {"w0": 8, "w1": 8, "w2": 8, "w3": 4}
    assert pace.aside == ()
    assert "w3 takes 2.0 times as long as the fastest" in pace.reason


def test_two_workers_are_compared_directly() -> None:
    assert decided(steady(1.0, 2.0), batch=12).shares == {"w0": 8, "w1": 4}


def test_one_faster_worker_gets_a_larger_share() -> None:
    assert decided(steady(1.0, 1.0, 1.0, 0.5), batch=30).shares == {"w0": 6, "w1": 6, "w2": 6, "w3": 12}


def test_shares_that_are_right_already_stay() -> None:
    history = steady(1.0, 1.0, 1.0, 2.0)
    pace = decide_pace(history, {"w0": 8, "w1": 8, "w2": 8, "w3": 4}, 28, slow_factor=4)
    assert pace.shares is None
    assert "hardly" in pace.reason


def test_a_worker_that_is_well_again_gets_its_share_back() -> None:
    slow_before = {"w0": 8, "w1": 8, "w2": 8, "w3": 4}
    pace = decide_pace(steady(1.0, 1.0, 1.0, 0.75), slow_before, 28, slow_factor=4)
    assert pace.shares is not None
    assert pace.shares["w3"] > 7


def test_a_far_too_slow_worker_is_set_aside_and_reported() -> None:
    pace = decided(steady(1.0, 1.0, 1.0, 6.0), batch=8)
    assert pace.aside == ("w3",)
    assert pace.shares is None
    assert "w3 takes 6.0 times as long as the others" in pace.reason or "w3 takes 5.9" in pace.reason


def test_a_slow_worker_that_the_rest_would_miss_stays() -> None:
    pace = decided(steady(1.0, 5.0), batch=60)
    assert pace.aside == ()
    assert pace.shares == {"w0": 50, "w1": 10}


def test_without_balance_a_worker_is_only_ever_set_aside() -> None:
    slower = decide_pace(steady(1.0, 1.0, 2.0), None, 30, slow_factor=4, balance=False)
    assert (slower.shares, slower.aside) == (None, ())
    slowest = decide_pace(steady(1.0, 5.0), None, 60, slow_factor=4, balance=False)
    assert (slowest.shares, slowest.aside) == (None, ("w1",))


def test_a_spare_takes_the_place_of_a_worker_that_is_slow_but_not_far_too_slow() -> None:
    history = steady(1.0, 1.0, 1.0, 2.5)
    assert decide_pace(history, None, 32, slow_factor=4, balance=False).aside == ()
    pace = decide_pace(history, None, 32, slow_factor=4, balance=False, spares=1)
    assert (pace.aside, pace.shares) == (("w3",), None)
    assert "set aside for a spare" in pace.reason


def test_no_more_are_replaced_than_spares_wait_and_the_slowest_first() -> None:
    history = steady(1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0)
    assert decide_pace(history, None, 32, slow_factor=9, spares=1).aside == ("w6",)
    assert decide_pace(history, None, 32, slow_factor=9, spares=5).aside == ("w5", "w6")


def test_a_spare_does_not_replace_a_worker_that_is_hardly_slower() -> None:
    assert decide_pace(steady(1.0, 1.0, 1.0, 1.4), None, 32, slow_factor=4, spares=2).aside == ()


def test_a_few_slow_steps_change_nothing() -> None:
    history = steady(1.0, 1.0, 1.0, 1.0)
    history["w2"][-8:] = [20.0] * 8
    assert decided(history) == PaceDecision(None, (), "all workers are about equally fast")


def test_nothing_happens_before_every_worker_was_seen_for_a_while() -> None:
    assert decided(steady(1.0, 9.0, steps=19)).aside == ()
    assert decided({}).shares is None
    assert decided(steady(1.0, 9.0), batch=1).shares is None


@pytest.mark.parametrize("workers", [2, 4, 16, 200])
@pytest.mark.parametrize("noise", [0.02, 0.3, 0.8])
def test_pure_noise_is_left_alone(workers: int, noise: float) -> None:
    rounds = 4000 // workers + 20
    acted = sum(
        decided(steady(*[1.0] * workers, noise=noise, steps=20, seed=seed), batch=4 * workers).reason[:3]
        != "all"
        for seed in range(rounds)
    )
    assert acted <= rounds / 1000


@given(speeds, st.integers(0, 200))
def test_fair_shares_add_up_to_the_batch_and_leave_no_worker_out(typical: list[float], more: int) -> None:
    named = {str(place): seconds for place, seconds in enumerate(typical)}
    shares = fair_shares(named, len(typical) + more)
    assert sum(shares.values()) == len(typical) + more
    assert min(shares.values()) >= 1


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=3), st.integers(0, 8))
def test_no_other_shares_end_a_step_earlier(typical: list[float], more: int) -> None:
    named = {str(place): seconds for place, seconds in enumerate(typical)}
    batch = len(typical) + more
    every = (s for s in product(range(1, batch + 1), repeat=len(typical)) if sum(s) == batch)
    best = min(max(n * t for n, t in zip(s, typical, strict=True)) for s in every)
    assert step_s(named, fair_shares(named, batch)) == pytest.approx(best)


@given(speeds, st.randoms(), st.integers(1, 8))
def test_names_and_their_order_do_not_matter(typical: list[float], random: Random, each: int) -> None:
    assume(len(typical) > 1 and len(set(typical)) == len(typical))
    order = list(range(len(typical)))
    random.shuffle(order)
    history = steady(*typical)
    shuffled = {f"w{order[place]}": history[f"w{place}"] for place in range(len(typical))}
    batch = each * len(typical)
    one, two = decided(history, batch), decided(shuffled, batch)
    renamed = {f"w{order[place]}": f"w{place}" for place in order}
    assert sorted(renamed[worker] for worker in two.aside) == sorted(one.aside)
    assert (two.shares is None) == (one.shares is None)
    if one.shares is not None and two.shares is not None:
        assert {renamed[worker]: share for worker, share in two.shares.items()} == one.shares


@settings(max_examples=200)
@given(speeds, st.integers(1, 64), st.floats(1.5, 10.0), st.booleans())
def test_what_is_decided_shortens_the_step_and_keeps_someone(
    typical: list[float], each: int, slow_factor: float, balance: bool
) -> None:
    history, batch = steady(*typical), each * len(typical)
    pace = decide_pace(history, None, batch, slow_factor=slow_factor, balance=balance)
    times = {worker: statistics.median(seconds) for worker, seconds in history.items()}
    before = step_s(times, even_shares(list(times), batch))
    rest = {worker: seconds for worker, seconds in times.items() if worker not in pace.aside}
    assert rest
    if pace.shares is not None:
        assert balance
        assert set(pace.shares) == set(rest)
        assert sum(pace.shares.values()) == batch
        assert min(pace.shares.values()) >= 1
        assert step_s(rest, pace.shares) < before


@given(speeds.filter(lambda s: len(s) > 1))
def test_each_worker_is_compared_with_the_median_of_the_others(typical: list[float]) -> None:
    named = {str(place): seconds for place, seconds in enumerate(typical)}
    for worker, median in _medians_of_others(named).items():
        assert median == pytest.approx(statistics.median(s for w, s in named.items() if w != worker))


def uniform(_: Random, factor: float, __: int) -> list[float]:
    return [factor] * STEPS


def sliced(random: Random, factor: float, every: int) -> list[float]:
    """Run for as long as `every` steps take, then stop, as by SIGSTOP and SIGCONT."""
    times, left = [], random.uniform(0, every)
    for _ in range(STEPS):
        stalls = left < 1
        times.append(1 + (factor - 1) * every * stalls)
        left += every * stalls - 1
    return times


def periodic(_: Random, factor: float, every: int) -> list[float]:
    return [1 + (factor - 1) * every * (step % every == 0) for step in range(STEPS)]


def random_stalls(random: Random, factor: float, every: int) -> list[float]:
    return [1 + (factor - 1) * every * (random.random() < 1 / every) for _ in range(STEPS)]


def heavy_tailed(random: Random, factor: float, _: int) -> list[float]:
    """Pareto times of index 1.2, whose mean is six times their minimum."""
    return [factor / 6 * random.paretovariate(1.2) for _ in range(STEPS)]


def decided_by_steps(times: Mapping[str, Sequence[float]], per_beat: int = 1) -> PaceDecision:
    """Decide as the leader would: by medians of the latest heartbeats, and by totals of all."""
    beats = {w: [own[at : at + per_beat] for at in range(0, len(own), per_beat)] for w, own in times.items()}
    return decide_pace(
        {worker: [statistics.median(beat) for beat in own[-32:]] for worker, own in beats.items()},
        None,
        32,
        slow_factor=4.0,
        balance=False,
        spares=1,
        totals={w: [Total(sum(beat), len(beat)) for beat in own] for w, own in beats.items()},
    )


def noisy(random: Random, base_s: float, times: Sequence[float]) -> list[float]:
    return [base_s * random.lognormvariate(0, 0.1) * time for time in times]


@pytest.mark.parametrize("slowness", [uniform, sliced, periodic, random_stalls, heavy_tailed])
@settings(max_examples=40, deadline=None)
@given(base_times, factors, st.integers(2, 10), st.integers(1, 20), st.integers(2, 4), st.integers(0, 999))
def test_a_worker_that_is_slow_in_total_is_set_aside_however_its_delay_is_spread(
    slowness: Slowness, base_s: float, factor: float, every: int, per_beat: int, workers: int, seed: int
) -> None:
    random = Random(seed)
    times = {f"w{place}": noisy(random, base_s, [1.0] * STEPS) for place in range(workers)}
    times["w1"] = noisy(random, base_s, slowness(random, factor, every))
    pace = decided_by_steps(times, per_beat)
    assert pace.aside == ("w1",)
    assert "set aside for a spare" in pace.reason


@settings(max_examples=60, deadline=None)
@given(base_times, st.floats(0, 1e6), st.integers(1, 12), st.floats(0, 1), st.integers(0, 999))
def test_one_hiccup_of_any_length_changes_nothing(
    base_s: float, late_s: float, steps: int, place: float, seed: int
) -> None:
    random = Random(seed)
    times = {f"w{worker}": noisy(random, base_s, [1.0] * STEPS) for worker in range(3)}
    first = int(place * (STEPS - steps))
    for step in range(first, first + steps):
        times["w1"][step] += late_s
    assert decided_by_steps(times) == PaceDecision(None, (), "all workers are about equally fast")


@settings(max_examples=60, deadline=None)
@given(
    base_times, st.lists(st.integers(0, STEPS - 1), max_size=12), st.floats(0, 1e6), st.integers(1, 20),
    st.integers(0, 999),
)  # fmt: skip
def test_a_few_stalls_change_nothing_wherever_they_fall(
    base_s: float, stalls: list[int], late_s: float, per_beat: int, seed: int
) -> None:
    random = Random(seed)
    times = {f"w{worker}": noisy(random, base_s, [1.0] * STEPS) for worker in range(3)}
    for step in stalls:
        times["w1"][step] += late_s
    assert decided_by_steps(times, per_beat) == PaceDecision(None, (), "all workers are about equally fast")


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("steps", [MIN_TOTALS, 128])
@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(lambda random: random.lognormvariate(0, 0.8), id="lognormal"),
        pytest.param(lambda random: random.paretovariate(1.5), id="heavy-tailed"),
        pytest.param(lambda random: 1 + 50 * (random.random() < 0.02), id="rare stalls"),
        pytest.param(lambda random: 1 + 50 * (random.random() < 0.15), id="frequent stalls"),
    ],
)
def test_noise_that_all_workers_share_is_left_alone(
    workers: int, steps: int, noise: Callable[[Random], float]
) -> None:
    rounds = 600 // workers
    for seed in range(rounds):
        random = Random(seed)
        times = {f"w{worker}": [noise(random) for _ in range(steps)] for worker in range(workers)}
        assert decided_by_steps(times).aside == ()


def test_a_slow_heartbeat_with_one_step_weighs_no_more_than_its_step() -> None:
    """A worker stalls for 0.2 s after each 1.2 s: it loses a seventh of the time, too little to act on."""
    beats = [Total(0.2, 40)] * 6 + [Total(0.2, 1)]
    totals = {"w0": [Total(0.2, 40)] * 128, "w1": (beats * 19)[:128]}
    pace = decide_pace(steady(0.005, 0.005), None, 32, slow_factor=4, spares=1, totals=totals)
    assert pace.aside == ()


def test_totals_are_not_compared_before_there_are_enough() -> None:
    times = {"w0": [1.0] * 59, "w1": [1.0, 1.0, 90.0] * 20}
    assert decided_by_steps(times).aside == ()
    times["w0"].append(1.0)
    assert decided_by_steps(times).aside == ("w1",)


def test_a_worker_that_stalls_gets_a_smaller_share_when_shares_may_differ() -> None:
    totals = {"w0": [Total(1.0, 1)] * 60, "w1": [Total(1.0, 1), Total(1.0, 1), Total(4.0, 1)] * 20}
    assert decide_pace(steady(1.0, 1.0), None, 12, slow_factor=4, totals=totals).shares == {"w0": 8, "w1": 4}
