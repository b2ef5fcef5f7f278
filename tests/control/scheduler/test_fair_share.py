from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.scheduler.world import ask, machines
from windlass.control.scheduler.fair_share import FADE_S, HALF_LIFE_S, dominant_shares, fade
from windlass.control.scheduler.snapshot import MemberResources, RunningJob, Snapshot


def test_usage_fades_by_half_in_its_half_life() -> None:
    assert fade(8.0, 0.0, HALF_LIFE_S) == pytest.approx(4.0)


def test_a_share_held_for_long_is_the_average_of_late() -> None:
    assert fade(0.0, 0.25, 100 * HALF_LIFE_S) / FADE_S == pytest.approx(0.25)


@given(st.floats(0, 1e5), st.floats(0, 1), st.floats(0, 1e5), st.floats(0, 1e5))
def test_it_does_not_matter_how_often_usage_is_counted(
    used: float, share: float, first_s: float, then_s: float
) -> None:
    at_once = fade(used, share, first_s + then_s)
    assert fade(fade(used, share, first_s), share, then_s) == pytest.approx(at_once, rel=1e-6, abs=1e-6)


def test_the_dominant_share_is_that_of_the_scarcest_thing_held() -> None:
    fleet = machines(2, cores=10, gpus=2)
    placed = [RunningJob(ask("a", 2, MemberResources(1.0, gpus=1)), 2), RunningJob(ask("b", 5), 5)]
    assert dominant_shares(Snapshot(0.0, fleet, [], placed)) == {"a": 0.5, "b": 0.25}
