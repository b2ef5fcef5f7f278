"""When replicas exchange what: laws of the decisions, without processes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from windlass.spec.sync import Sync
from windlass.train.sync.policy import (
    cut_into_fragments,
    first_schedule,
    keeps_residual,
    outer_numbers,
    steps_within,
)


@st.composite
def streaming(draw: st.DrawFn) -> Sync:
    every = draw(st.integers(1, 60))
    fragments = draw(st.integers(1, every))
    return Sync(policy="diloco", every=every, fragments=fragments, delay=draw(st.integers(0, every - 1)))


@given(streaming(), st.integers(0, 1000), st.integers(0, 5))
def test_each_fragment_is_exchanged_once_in_every_period(sync: Sync, origin: int, period: int) -> None:
    schedule = first_schedule(sync, origin)
    begin = origin + period * sync.every
    started = [part for step in range(begin + 1, begin + sync.every + 1) for part in schedule.starts(step)]
    assert sorted(started) == list(range(sync.fragments))


@given(streaming(), st.integers(0, 1000))
def test_an_exchange_is_over_before_its_fragment_starts_again(sync: Sync, origin: int) -> None:
    schedule = first_schedule(sync, origin)
    under_way: dict[int, int] = {}
    for step in range(origin, origin + 3 * sync.every + 1):
        for part in schedule.starts(step):
            assert part not in under_way
            under_way[part] = step
        for part in schedule.ends(step):
            assert under_way.pop(part) == step - sync.delay


@given(streaming(), st.integers(0, 1000))
def test_fragments_are_spread_evenly_over_the_period(sync: Sync, origin: int) -> None:
    schedule = first_schedule(sync, origin)
    steps = [s for s in range(origin, origin + 2 * sync.every + 1) for _ in schedule.starts(s)]
    gaps = {later - sooner for sooner, later in itertools.pairwise(steps)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@given(st.integers(1, 60), st.integers(0, 1000), st.integers(0, 500))
def test_with_whole_exchanges_every_exchange_is_a_sync_point(every: int, origin: int, gone: int) -> None:
    schedule = first_schedule(Sync(policy="local", every=every), origin)
    assert schedule.is_sync_point(origin + gone) == (gone % every == 0)


@given(streaming().filter(lambda s: s.fragments > 1 or s.delay), st.integers(1, 500))
def test_with_fragments_or_delay_no_sync_point_comes_by_itself(sync: Sync, gone: int) -> None:
    schedule = first_schedule(sync, 7)
    assert schedule.is_sync_point(7)
    assert not schedule.is_sync_point(7 + gone)
    assert not schedule.has_sync_points


@given(st.integers(0, 10_000))
def test_under_every_step_each_step_is_a_sync_point_and_nothing_else_is_exchanged(step: int) -> None:
    schedule = first_schedule(Sync(), 0)
    assert schedule.is_sync_point(step)
    assert schedule.starts(step) == ()


@given(st.floats(0.001, 1e4), st.floats(1e-5, 1e4))
def test_the_steps_of_a_timed_period_take_no_longer_than_requested(seconds: float, step_s: float) -> None:
    steps = steps_within(seconds, step_s)
    assert steps == 1 or steps * step_s <= seconds * (1 + 1e-9)
    assert (steps + 1) * step_s >= seconds * (1 - 1e-9)


def test_a_timed_policy_looks_after_one_step_and_then_paces_itself() -> None:
    schedule = first_schedule(Sync(policy="timed", seconds=10), 5)
    assert schedule.is_sync_point(6)
    paced = schedule.paced(6, step_s=2.0)
    assert [step for step in range(6, 20) if paced.is_sync_point(step)] == [6, 11, 16]


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**6), max_size=40), st.integers(1, 8))
def test_fragments_hold_every_weight_once_and_nearly_equal_sizes(sizes: dict[str, int], parts: int) -> None:
    groups = cut_into_fragments(sizes, parts)
    assert sorted(name for group in groups for name in group) == sorted(sizes)
    loads = [sum(sizes[name] for name in group) for group in groups]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_fragments_do_not_depend_on_the_order_in_which_weights_are_listed(names: list[str]) -> None:
    sizes = {name: 1 + ord(name) % 3 for name in names}
    assert cut_into_fragments(sizes, 2) == cut_into_fragments(dict(sorted(sizes.items())), 2)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**6), max_size=20), st.integers(1, 8))
def test_a_tied_matrix_falls_into_the_same_fragment_at_both_ends(others: dict[str, int], parts: int) -> None:
    groups = cut_into_fragments({**others, "tied": 5000}, parts, shared={"tied"})
    assert "tied" in groups[0]


def test_plain_averaging_is_an_outer_rate_of_one_without_momentum() -> None:
    assert outer_numbers(Sync(policy="local")) == (1.0, 0.0)
    assert outer_numbers(Sync(policy="diloco", outer_rate=0.5, outer_momentum=0.8)) == (0.5, 0.8)


def test_a_gradient_that_was_left_out_means_nothing_to_a_policy_of_weights() -> None:
    assert keeps_residual(Sync(compress="top-k"), Sync())
    assert not keeps_residual(Sync(compress="top-k"), Sync(policy="local"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"policy": "local", "fragments": 2}, "belong to policy = 'diloco'"),
        ({"policy": "diloco", "every": 3, "fragments": 4}, "do not fit into 3 steps"),
        ({"policy": "diloco", "every": 3, "delay": 3}, "must be shorter than every 3"),
        ({"policy": "diloco", "compress": "powersgd"}, "has no low rank"),
    ],
)
def test_a_contradiction_is_refused_with_its_reason(wrong: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Sync.model_validate(wrong)
