"""Decides how unequal workers share the batch, and which are too slow to take part.

Input: the recent compute times of each worker, in seconds for one sequence. Output: new shares, workers to
set aside, or nothing. Medians and median deviations are used throughout, so that no single slow step and no
single slow worker moves what the others are compared with. To act on noise costs a regrouping and gains
nothing; so a difference counts only if it is large, if it is many times the noise of the times themselves,
and if the step would become shorter by a tenth. Noise is looked at in logarithms: a step can be late by
seconds, but early only by as long as it takes.

A worker that mostly stands still can have ordinary times in most steps. So totals are compared as well: they
are cut into blocks, and the median over the blocks of the mean time in each (the median of means) contains
stalls once they fall into nearly all blocks. A hiccup falls into a few of them and changes nothing.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_SAMPLES = 20
BLOCKS = 15
OUTLYING = 2
"""Blocks that may be out of the ordinary. Of 15, the third lowest is above the median once in 270 times."""
MIN_TOTALS = 4 * BLOCKS
SLOWER = 1.3
SIGMAS = 4.0
CORRELATED = 4
"""Neighbouring steps are slow together, so a median of n times is as sure as one of n / CORRELATED."""
GAIN = 0.1
REPLACED = 1.5
"""Slower by so much, a worker is worth less than the regrouping that a spare in its place costs."""
SIGMA_OF_MAD = 1.4826
MEDIAN_OF_MEAN = 1.2533
"""Of normal noise: its deviation over its median deviation; the error of a median over that of a mean."""


@dataclass(frozen=True)
class PaceDecision:
    """What to change: new shares, workers to set aside, or nothing."""

    shares: dict[str, int] | None
    """New number of sequences of each worker; None: unchanged."""
    aside: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Total:
    """How long a worker computed between two heartbeats.

    The number of steps belongs to it: a worker that stalls does few steps before the next heartbeat, and by
    means alone it would seem slower than it is.
    """

    seconds: float
    """For one sequence, added up over the steps."""
    steps: int


@dataclass(frozen=True)
class Times:
    """How long a worker computes on one sequence."""

    typical_s: float
    error: float
    """Standard error of its logarithm, by the worker's own noise."""


def decide_pace(
    history: Mapping[str, Sequence[float]],
    shares: Mapping[str, int] | None,
    batch: int,
    *,
    slow_factor: float,
    balance: bool = True,
    spares: int = 0,
    totals: Mapping[str, Sequence[Total]] | None = None,
) -> PaceDecision:
    """Return what to do about unequal workers; `shares` None means that each has as much as the others.

    A worker here is a process group with a share of the batch: with tensor parallelism, a whole replica.
    Without `balance` shares stay equal, and a worker is only ever set aside. `spares` can replace a worker
    that is set aside, which makes it pay off earlier. `totals` are of the same workers, often over a longer
    time; without them only the times in `history` are compared, and stalls in few of them are not seen.
    """
    if not 2 <= len(history) <= batch:
        return _nothing("one worker, or more of them than sequences: nothing to divide")
    if min(map(len, history.values())) < MIN_SAMPLES:
        return _nothing(f"not every worker was seen for {MIN_SAMPLES} steps yet")
    times = {worker: _times(seconds) for worker, seconds in history.items()}
    stalled = _stalled(totals) if totals is not None else {}
    unequal = sorted({*_unequal(times), *stalled})
    if not unequal:
        return _nothing("all workers are about equally fast")
    typical = _with_stalls(times, stalled)
    others = _medians_of_others(typical)
    now = dict(shares) if shares is not None else even_shares(list(typical), batch)
    slow = sorted(worker for worker in unequal if typical[worker] > slow_factor * others[worker])
    replaced = sorted(unequal, key=lambda worker: -typical[worker] / others[worker])[:spares]
    replaced = [worker for worker in replaced if typical[worker] > REPLACED * others[worker]]
    if len(replaced) >= len(slow) and replaced:
        return _replaced(typical, others, replaced)
    aside = _set_aside(typical, others, now, slow, batch, balance)
    if aside is not None or not balance:
        return aside or _nothing("workers are unequal, and the job asks for equal shares")
    return _balanced(typical, now, batch)


def fair_shares(typical_s: Mapping[str, float], batch: int) -> dict[str, int]:
    """Divide whole sequences, at least one each, so that the last worker is done as early as can be.

    Rounded-down proportions are within the best division; each remaining sequence goes to the worker
    that would finish first with it, which is optimal because a step takes as long as its longest share.
    """
    speed = math.fsum(1 / seconds for seconds in typical_s.values())
    shares = {worker: max(1, int(batch / (s * speed))) for worker, s in typical_s.items()}
    while sum(shares.values()) > batch:  # many got a sequence more than is due
        longest = max((w for w in shares if shares[w] > 1), key=lambda w: (shares[w] * typical_s[w], w))
        shares[longest] -= 1
    heap = [((shares[w] + 1) * s, w) for w, s in typical_s.items()]
    heapq.heapify(heap)
    for _ in range(batch - sum(shares.values())):
        _, worker = heap[0]
        shares[worker] += 1
        heapq.heapreplace(heap, ((shares[worker] + 1) * typical_s[worker], worker))
    return shares


def even_shares(workers: Sequence[str], batch: int) -> dict[str, int]:
    """Divide a batch as equally as whole sequences allow."""
    each, more = divmod(batch, len(workers))
    return {worker: each + (place < more) for place, worker in enumerate(workers)}


def step_s(typical_s: Mapping[str, float], shares: Mapping[str, int]) -> float:
    """Return how long the longest share takes."""
    return max(shares[worker] * seconds for worker, seconds in typical_s.items())


def _balanced(typical: Mapping[str, float], now: Mapping[str, int], batch: int) -> PaceDecision:
    fair = fair_shares(typical, batch)
    before, after = step_s(typical, now), step_s(typical, fair)
    if after > (1 - GAIN) * before:
        return _nothing("workers are unequal, but other shares would hardly shorten the step")
    slowest = max(typical, key=lambda worker: (typical[worker], worker))
    return PaceDecision(
        fair,
        (),
        f"{slowest} takes {typical[slowest] / min(typical.values()):.1f} times as long as the fastest for one"
        f" sequence; its share goes from {now[slowest]} to {fair[slowest]} of {batch}, and computing from"
        f" {before:.3g} to {after:.3g} s a step",
    )


def _set_aside(
    typical: Mapping[str, float],
    others: Mapping[str, float],
    now: Mapping[str, int],
    slow: Sequence[str],
    batch: int,
    balance: bool,
) -> PaceDecision | None:
    """Set aside workers that are far too slow, unless the others need their work.

    The rest must be faster than all are today, and nearly as fast as all could be with fair shares.
    """
    rest = {worker: seconds for worker, seconds in typical.items() if worker not in slow}
    if not slow or not rest:
        return None
    fair = fair_shares(rest, batch)
    alone, today = step_s(rest, fair), step_s(typical, now)
    possible = step_s(typical, fair_shares(typical, batch)) if balance else today
    if alone >= today or alone * (1 - GAIN) > possible:
        return None
    even = step_s(rest, even_shares(list(rest), batch))
    worst = max(slow, key=lambda worker: typical[worker] / others[worker])
    return PaceDecision(
        fair if balance and alone <= (1 - GAIN) * even else None,
        tuple(slow),
        f"{', '.join(slow)} set aside: {worst} takes {typical[worst] / others[worst]:.1f} times as long as"
        f" the others; a step takes {today:.3g} s of computing with {'it' if len(slow) == 1 else 'them'} and"
        f" {alone:.3g} s without",
    )


def _replaced(typical: Mapping[str, float], others: Mapping[str, float], slow: Sequence[str]) -> PaceDecision:
    worst = slow[0]
    return PaceDecision(
        None,
        tuple(sorted(slow)),
        f"{', '.join(sorted(slow))} set aside for a spare: {worst} takes {typical[worst] / others[worst]:.1f}"
        " times as long as the others",
    )


def _unequal(times: Mapping[str, Times]) -> list[str]:
    """Return the workers that differ from the others beyond doubt."""
    others = _medians_of_others({worker: time.typical_s for worker, time in times.items()})
    noise = statistics.median(time.error for time in times.values())
    return [w for w, time in times.items() if _differs(time, others[w], noise, len(times))]


def _stalled(totals: Mapping[str, Sequence[Total]]) -> dict[str, float]:
    """Return the workers that take longer than the others in total, and by which factor.

    Stalls are rare and long, so their noise has no scale to measure. Ranks need none: nearly all blocks of
    the worker must be slower than nearly all of the others', whatever the distribution of their times.
    """
    if min(map(len, totals.values())) < MIN_TOTALS:
        return {}
    blocks = {worker: sorted(_block_means(own)) for worker, own in totals.items()}
    highs = _medians_of_others({w: means[-1 - OUTLYING] for w, means in blocks.items()})
    middles = {w: statistics.median(means) for w, means in blocks.items()}
    others = _medians_of_others(middles)
    slower = [w for w, means in blocks.items() if means[OUTLYING] > SLOWER * highs[w]]
    return {worker: middles[worker] / others[worker] for worker in slower}


def _block_means(totals: Sequence[Total]) -> list[float]:
    """Return the mean time of a step in each of BLOCKS parts of a history."""
    bounds = [len(totals) * block // BLOCKS for block in range(BLOCKS + 1)]
    blocks = [totals[begin:end] for begin, end in pairwise(bounds)]
    return [math.fsum(t.seconds for t in block) / sum(t.steps for t in block) for block in blocks]


def _with_stalls(times: Mapping[str, Times], stalled: Mapping[str, float]) -> dict[str, float]:
    """Return typical times in which a worker that stalls is slower than the others by its factor in total."""
    typical = {worker: time.typical_s for worker, time in times.items()}
    others = _medians_of_others(typical)
    return {w: max(s, stalled.get(w, 0.0) * others[w]) for w, s in typical.items()}


def _times(seconds: Sequence[float]) -> Times:
    logs = [math.log(max(s, 1e-12)) for s in seconds]
    middle = statistics.median(logs)
    spread = SIGMA_OF_MAD * statistics.median(abs(log - middle) for log in logs)
    return Times(math.exp(middle), MEDIAN_OF_MEAN * spread * math.sqrt(CORRELATED / len(logs)))


def _differs(time: Times, others_s: float, noise: float, workers: int) -> bool:
    """Whether a worker is slower or faster than the others, beyond doubt.

    Among many workers someone is always far out, so doubt grows with their number.
    """
    apart = abs(math.log(time.typical_s / others_s))
    doubt = math.sqrt(SIGMAS**2 + 2 * math.log(workers)) * math.hypot(time.error, noise)
    return apart > max(math.log(SLOWER), doubt)


def _medians_of_others(typical: Mapping[str, float]) -> dict[str, float]:
    """Return the median over all workers but one, for each; of two it is the other."""
    order = sorted(typical, key=lambda worker: typical[worker])
    values, found = [typical[worker] for worker in order], {}
    for place, worker in enumerate(order):
        low, high = ((len(values) - 2) // 2, (len(values) - 1) // 2)
        found[worker] = (values[low + (low >= place)] + values[high + (high >= place)]) / 2
    return found


def _nothing(reason: str) -> PaceDecision:
    return PaceDecision(None, (), reason)
