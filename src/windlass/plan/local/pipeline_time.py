"""The time of a pipeline's step: simulates the schedule with the times of its stages.

Input: seconds of each stage for a micro-batch, forward and backward, and of sending it on. Output: seconds
until the last process is done. GPipe: Huang et al. 2018, arXiv:1811.06965; 1F1B: Narayanan et al. 2021,
arXiv:2104.04473. Other schedules are taken at their published bubble, which parallel/schedule.py lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.spec.layout import Schedule

Work = tuple[bool, int]
"""Whether backward, and which micro-batch."""


def pipeline_s(
    schedule: Schedule,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    micro: int,
    hand_s: float,
    *,
    virtual: int = 1,
) -> float:
    """Return the seconds of a step of `micro` micro-batches.

    Where a process has several stages, its times are those of all of them together.
    """
    pp = len(forward_s)
    if schedule in ("gpipe", "1f1b"):
        orders = [order(schedule, stage, pp, micro) for stage in range(pp)]
        return _worked_through(orders, forward_s, backward_s, hand_s)
    pass_s = max(f + b for f, b in zip(forward_s, backward_s, strict=True))
    if schedule == "asynchronous":
        return micro * pass_s
    parts = virtual * (1 if schedule in ("interleaved", "looped") else 3)
    return micro * pass_s + (pp - 1) * (pass_s / parts + 2 * hand_s)


def order(schedule: Schedule, stage: int, pp: int, micro: int) -> list[Work]:
    """Return what a stage does, one after the other."""
    ahead = micro if schedule == "gpipe" else min(micro, pp - stage)
    work: list[Work] = [(False, number) for number in range(ahead)]
    for number in range(micro):
        work.append((True, number))
        if ahead + number < micro:
            work.append((False, ahead + number))
    return work


def _worked_through(
    orders: Sequence[Sequence[Work]], forward_s: Sequence[float], backward_s: Sequence[float], hand_s: float
) -> float:
    """Run every stage's next work as soon as its inputs are there."""
    pp, ends = len(orders), dict[tuple[int, Work], float]()
    clocks, places = [0.0] * pp, [0] * pp
    while any(place < len(work) for place, work in zip(places, orders, strict=True)):
        for stage, work in enumerate(orders):
            while places[stage] < len(work):
                back, number = work[places[stage]]
                needs = (stage + 1 if back else stage - 1, (back, number))
                if needs[0] in range(pp) and needs not in ends:
                    break
                ready = ends[needs] + hand_s if needs in ends else 0.0
                seconds = backward_s[stage] if back else forward_s[stage]
                clocks[stage] = max(clocks[stage], ready) + seconds
                ends[stage, (back, number)] = clocks[stage]
                places[stage] += 1
    return max(clocks)
