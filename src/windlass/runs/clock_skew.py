"""Corrects the times of a journal that was written by clocks that disagree.

Input: the records of one journal, in their true order (docs/formats/journal.md). Output: the same records
with times that never decrease. Where times decrease, some clock is wrong. As many records as possible with
times in order are trusted; each other record is placed between its trusted neighbours, so its error is at
most the time between those two. A jump forward without a later jump back is a pause, and stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

SKEW_S = 5.0
"""A smaller difference between two records is taken as time that passed."""
WORTH_S = 10.0
"""The end of the journal moves back by so much for each untrusted record: a jump of an hour that a few later
records contradict is not believed, and one record that goes back does not undo an hour."""
SAME_CLOCK_S = 60.0
"""Largest difference between two records that are taken to come from the same wrong clock."""
MAX_CLOCKS = 50
"""Recursion limit: how many clock changes in one journal are corrected."""


def mended(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with times that never decrease; records without a time stay as they are."""
    mended_records = list(records)
    dated = [index for index, record in enumerate(mended_records) if record.get("time") is not None]
    times = [float(mended_records[index]["time"]) for index in dated]
    for index, before, after in zip(dated, times, mended_times(times), strict=True):
        if after != before:
            mended_records[index] = {**mended_records[index], "time": after}
    return mended_records


def mended_times(times: Sequence[float], depth: int = MAX_CLOCKS) -> list[float]:
    """Return the times in order; times that are in order already stay as they are."""
    if depth == 0 or all(before <= after for before, after in pairwise(times)):
        return list(accumulate(times, max))
    trusted: list[int] = []
    for first, until in _tangles(times):
        if until - first == 1:
            trusted.append(first)
            continue
        if _hangs(times, first, until):
            way = _in_order(times, first, until, open_end=True)
            if way[-1] == until - 1:
                return _placed(times, trusted + way, depth - 1)
        trusted += _in_order(times, first, until, open_end=until == len(times))
    return _placed(times, trusted, depth - 1)


def _tangles(times: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Split the journal where no earlier record has a later time: conflicts are within the parts."""
    min_after = list(accumulate(reversed(times), min))[::-1]
    first, latest = 0, times[0]
    for index in range(1, len(times)):
        if latest <= min_after[index]:
            yield first, index
            first = index
        latest = max(latest, times[index])
    yield first, len(times)


def _hangs(times: Sequence[float], first: int, until: int) -> bool:
    """Whether the journal seems to end with a few records of the same wrong clock as this part."""
    rest = len(times) - until
    if first == 0 or rest == 0 or times[until] - times[until - 1] <= max(SKEW_S, rest * WORTH_S):
        return False
    return times[until] - max(times[first:until]) <= SAME_CLOCK_S


def _in_order(times: Sequence[float], first: int, until: int, *, open_end: bool) -> list[int]:
    """Return the records of a part to trust: the longest ordered sequence; at an open end, not the farthest.

    `stairs` holds the best sequence that ends at each time so far; a later end is kept if it scores higher.
    """
    stairs: list[tuple[float, float, int]] = []
    came_from: list[int] = []
    best, last = float("-inf"), first
    for index, far_s in enumerate(_without_pauses(times[first:until]), first):
        ahead = far_s / WORTH_S
        place = bisect_right(stairs, times[index], key=_time_of)
        score, before = (ahead, -1) if first == 0 else (0.0, -1)
        if place and stairs[place - 1][1] >= score:
            _, score, before = stairs[place - 1]
        came_from.append(before)
        score += 1.0
        worse = place
        while worse < len(stairs) and stairs[worse][1] <= score:
            worse += 1
        stairs[place:worse] = [(times[index], score, index)]
        if score - ahead * open_end > best:
            best, last = score - ahead * open_end, index
    way = [last]
    while (before := came_from[way[-1] - first]) >= 0:
        way.append(before)
    return way[::-1]


def _without_pauses(times: Sequence[float]) -> list[float]:
    """Return the distance of each time from the first, without jumps over times that no record has."""
    ordered = sorted(times)
    jumps = [(a, b) for a, b in pairwise(times) if b - a > SKEW_S]
    pauses = sorted({(b, a) for a, b in jumps if bisect_left(ordered, b) == bisect_right(ordered, a)})
    ends, lengths = [b for b, _ in pauses], list(accumulate((b - a for b, a in pauses), initial=0.0))
    squeezed = [time - lengths[bisect_right(ends, time)] for time in times]
    return [time - squeezed[0] for time in squeezed]


def _time_of(stair: tuple[float, float, int]) -> float:
    return stair[0]


def _placed(times: Sequence[float], trusted: Sequence[int], depth: int) -> list[float]:
    """Place each untrusted record between its trusted neighbours. The records before the first and after the
    last trusted one are corrected on their own, as those of another clock."""
    first, last = trusted[0], trusted[-1]
    lead = mended_times(times[:first], depth)
    placed = [times[first] - (lead[-1] - time) for time in lead]
    moved_s = 0.0
    for index, following in pairwise(trusted):
        room_s, start = times[following] - times[index], times[index] + moved_s
        if following == index + 1:
            placed.append(start)
            continue
        between = _passed(times[index + 1 : following], room_s)
        over_s = between[-1] - room_s
        if over_s > SKEW_S:  # a clock that ran longer than the gap was right, and was set back
            moved_s, room_s = moved_s + over_s, between[-1]
        placed += [start, *(start + min(passed_s, room_s) for passed_s in between)]
    tail = mended_times(times[last + 1 :], depth)
    end = times[last] + moved_s
    placed += [end, *(end + (time - tail[0]) for time in tail)]
    return list(accumulate(placed, max))  # guards against rounding in the sums


def _passed(times: Sequence[float], room_s: float) -> list[float]:
    """Return the time of each record after the first, without the jumps between clocks."""
    passed_s, since = 0.0, []
    for before, time in pairwise([*times[:1], *times]):
        step_s = time - before
        if abs(step_s) <= SKEW_S or 0 <= passed_s + step_s <= room_s:
            passed_s += step_s
        since.append(max(0.0, passed_s))
    return list(accumulate(since, max))
