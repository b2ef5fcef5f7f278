"""Mends the times of a journal that clocks which disagree have written.

Input: the records of one journal, which stand in true order (docs/formats/journal.md). Output: the same
records with times that never go back. Where times do go back, some clock is wrong. Trusted are as many
records as possible whose times are in order; each of the others is put between the trusted ones around it, so
it is off by no more than the time between those two. Time that goes on and never comes back is a pause, and
stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

SKEW_S = 5.0
"""A clock that goes on by less from one record to the next is taken to have just gone on."""
WORTH_S = 10.0
"""An open end of the journal is shortened by so much for each record that is not trusted for it: an hour that
a few records came back from is not believed, and a single time that went back does not undo an hour."""
SAME_CLOCK_S = 60.0
"""What a clock that is wrong may go on by between two of its records that are compared."""
MAX_CLOCKS = 50
"""How often what is left of a journal is mended on its own; nobody sets a clock back as often."""


def mended(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with times that never go back; those without a time are left as they are."""
    told = list(records)
    dated = [index for index, record in enumerate(told) if record.get("time") is not None]
    times = [float(told[index]["time"]) for index in dated]
    for index, before, after in zip(dated, times, mended_times(times), strict=True):
        if after != before:
            told[index] = {**told[index], "time": after}
    return told


def mended_times(times: Sequence[float], depth: int = MAX_CLOCKS) -> list[float]:
    """Return times in order; those that are in order already are not touched."""
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
    """Cut the journal wherever nothing before is later than anything after: conflicts are in between."""
    min_after = list(accumulate(reversed(times), min))[::-1]
    first, most = 0, times[0]
    for index in range(1, len(times)):
        if most <= min_after[index]:
            yield first, index
            first = index
        most = max(most, times[index])
    yield first, len(times)


def _hangs(times: Sequence[float], first: int, until: int) -> bool:
    """Say whether the journal seems to end with a few records of the clock that a tangle comes from."""
    rest = len(times) - until
    if first == 0 or rest == 0 or times[until] - times[until - 1] <= max(SKEW_S, rest * WORTH_S):
        return False
    return times[until] - max(times[first:until]) <= SAME_CLOCK_S


def _in_order(times: Sequence[float], first: int, until: int, *, open_end: bool) -> list[int]:
    """Return the records of a tangle to trust: the most in order, and at an open end not the farthest.

    `stairs` holds the best way to end at each time so far: a later end is kept only if it scores higher.
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
    """Return how far each time is from the first, leaving out jumps over a time that no other clock tells."""
    ordered = sorted(times)
    jumps = [(a, b) for a, b in pairwise(times) if b - a > SKEW_S]
    pauses = sorted({(b, a) for a, b in jumps if bisect_left(ordered, b) == bisect_right(ordered, a)})
    ends, lengths = [b for b, _ in pauses], list(accumulate((b - a for b, a in pauses), initial=0.0))
    squeezed = [time - lengths[bisect_right(ends, time)] for time in times]
    return [time - squeezed[0] for time in squeezed]


def _time_of(stair: tuple[float, float, int]) -> float:
    return stair[0]


def _placed(times: Sequence[float], trusted: Sequence[int], depth: int) -> list[float]:
    """Put each record that is not trusted between its neighbours; what is before all or after all of those
    is a journal of its own, of another clock."""
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
        if over_s > SKEW_S:  # a clock that ran on for longer than there is room was right, and was set back
            moved_s, room_s = moved_s + over_s, between[-1]
        placed += [start, *(start + min(passed_s, room_s) for passed_s in between)]
    tail = mended_times(times[last + 1 :], depth)
    end = times[last] + moved_s
    placed += [end, *(end + (time - tail[0]) for time in tail)]
    return list(accumulate(placed, max))  # sums of large numbers are off by their last digit


def _passed(times: Sequence[float], room_s: float) -> list[float]:
    """Return how long after the first of some records each is, leaving out steps from clock to clock."""
    passed_s, since = 0.0, []
    for before, time in pairwise([*times[:1], *times]):
        step_s = time - before
        if abs(step_s) <= SKEW_S or 0 <= passed_s + step_s <= room_s:
            passed_s += step_s
        since.append(max(0.0, passed_s))
    return list(accumulate(since, max))
