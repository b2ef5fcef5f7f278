"""Wrong clocks leave no time behind, and right ones lose none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.clock_skew import mended, mended_times

HOUR = 3600.0
MANY = 80
Written = list[tuple[float, float]]
"""The true time of each record, and by how much the clock that wrote it was wrong."""


def steps(first: int, until: int) -> list[float]:
    return [float(second) for second in range(first, until)]


@st.composite
def wrong_stretches(draw: st.DrawFn) -> Written:
    """A journal of one right clock and two that are wrong for a while; it begins and ends with the right one.

    Of three records at least two are right, and clocks are wrong by more than the journal is long.
    """
    passed = draw(st.lists(st.floats(0.0, 2.0), min_size=3, max_size=MANY))
    count = len(passed)
    wrong = [draw(st.floats(600.0, 1e5)) * draw(st.sampled_from([-1, 1])) for _ in range(2)]
    who = draw(st.lists(st.sampled_from([None, None, 0, 1]), min_size=count, max_size=count))
    left, offsets = count // 3, [0.0] * count
    begin = draw(st.integers(1, count - 1))
    for index in range(begin, count - 1):
        clock = who[index]
        if clock is not None and left > 0:
            offsets[index], left = wrong[clock], left - 1
    return list(zip(accumulate(passed, initial=1e9), offsets, strict=False))


def mend(written: Written) -> list[float]:
    return mended_times([true + offset for true, offset in written])


def rooms(written: Written) -> list[float]:
    """Return for each record how far the right ones around it are from each other; 0 for a right one."""
    before = list(accumulate((t if not o else -1.0 for t, o in written), max))
    after = list(accumulate((t if not o else 1e99 for t, o in reversed(written)), min))[::-1]
    return [b - a for a, b in zip(before, after, strict=True)]


@given(wrong_stretches())
def test_a_mended_time_is_off_by_no_more_than_the_right_records_around_it_are_apart(written: Written) -> None:
    found = mend(written)
    assert all(a <= b for a, b in pairwise(found))
    for (true, _), time, room_s in zip(written, found, rooms(written), strict=True):
        assert abs(time - true) <= room_s + 1e-6


@given(st.lists(st.floats(-1e9, 1e9)).map(sorted))
def test_times_in_order_are_left_alone_however_long_the_pauses(times: list[float]) -> None:
    assert mended_times(times) == times


@given(st.lists(st.floats(-1e9, 1e9), max_size=MANY))
def test_any_times_come_out_in_order(times: list[float]) -> None:
    found = mended_times(times)
    assert len(found) == len(times)
    assert all(a <= b for a, b in pairwise(found))


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
@pytest.mark.parametrize("after", [1, 3, 300])
def test_a_clock_that_came_back_a_moment_ago_is_not_believed(offset: float, after: int) -> None:
    wrong = [time + offset for time in steps(100, 108)]
    found = mended_times([*steps(0, 100), *wrong, *steps(108, 108 + after)])
    assert found == pytest.approx(steps(0, 108 + after), abs=1.0)


def test_a_journal_that_ends_on_the_wrong_clock_is_mended_too() -> None:
    wrong = [time + (HOUR if time > 50 and time % 2 else 0.0) for time in steps(0, 80)]
    assert mended_times(wrong) == pytest.approx(steps(0, 80), abs=2.0)


@pytest.mark.parametrize("back", [70.0, HOUR, 86400.0])
def test_a_clock_that_was_set_back_for_good_loses_no_time(back: float) -> None:
    later = [time - back for time in steps(2000, 7000)]
    found = mended_times([*steps(0, 2000), *later])
    assert found[-1] - found[0] == pytest.approx(7000, abs=7)


def test_pauses_on_both_sides_of_a_set_back_stay() -> None:
    later = [time - 86400 for time in [*steps(9000, 11000), *steps(15000, 15003)]]
    found = mended_times([*steps(0, 3), *steps(7000, 9000), *later])
    assert found[-1] - found[0] == pytest.approx(15003, abs=7)


def test_a_pause_stays_though_a_clock_was_wrong_before_it() -> None:
    wrong = [time + HOUR for time in steps(50, 58)]
    found = mended_times([*steps(0, 50), *wrong, *steps(58, 70), *steps(100, 103), *steps(9000, 9003)])
    assert found == pytest.approx([*steps(0, 70), *steps(100, 103), *steps(9000, 9003)], abs=1.0)


def test_many_set_backs_are_not_too_deep() -> None:
    falling: Sequence[float] = [float(-n) for n in range(2000)]
    found = mended_times(falling)
    assert all(a <= b for a, b in pairwise(found))


def test_records_keep_everything_but_their_time() -> None:
    records: list[dict[str, Any]] = [
        {"event": "a", "time": 1.0},
        {"event": "b"},
        {"event": "c", "time": HOUR},
        {"event": "d", "time": 2.0},
    ]
    found = mended(records)
    assert [record["event"] for record in found] == ["a", "b", "c", "d"]
    assert (found[1], found[3]) == (records[1], records[3])
    assert 1.0 <= found[2]["time"] <= 2.0
    assert records[2]["time"] == HOUR
