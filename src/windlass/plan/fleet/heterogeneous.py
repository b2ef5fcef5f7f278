"""Unequal devices together: each pool computes a share of every batch in proportion to its speed.

Every pool holds whole replicas of the model in a layout of its own; after the backward pass the pools add up
their gradients, each device with its counterpart, over the network between pools. The step takes as long as
that of the slowest pool, so shares are moved until that helps no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from windlass.plan.cost.step_time import StepTime
from windlass.plan.fleet.explore import SearchFound
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.run_estimate import PoolLayout, RunEstimate, estimate_team
from windlass.plan.fleet.work import TrainingWork

PARTS = 32
"""Parts of a batch that are shared out."""
MAX_MOVES = 8
GRADIENT_BYTES = 4
"""Of one weight, as replicas add them up."""
EXCHANGE = "gradient exchange between pools"

Search = Callable[[TrainingWork, DevicePool], SearchFound]


def together(
    work: TrainingWork, pools: tuple[DevicePool, ...], search: Search, between_bytes_s: float | None = None
) -> RunEstimate | None:
    """Return the best team of all pools that can hold the model, or None if fewer than two can."""
    found = [(pool, search(work, pool).best) for pool in pools]
    able = [(pool, best.step_s) for pool, best in found if best is not None]
    parts = max(part for part in range(1, PARTS + 1) if work.global_batch % part == 0)
    if not 2 <= len(able) <= parts:
        return None
    shares = in_proportion([1 / step_s for _, step_s in able], parts)
    team = [pool for pool, _ in able]
    best: RunEstimate | None = None
    for _ in range(MAX_MOVES):
        members = _members(work, team, shares, parts, search)
        if members is None:
            return best
        tried = _joined(work, members, between_bytes_s)
        if best is not None and tried.step.seconds >= best.step.seconds:
            return best
        best, shares = tried, _moved(members, shares)
    return best


def in_proportion(speeds: list[float], parts: int) -> list[int]:
    """Share out parts so that each pool gets at least one and all need about the same time."""
    shares = [1] * len(speeds)
    for _ in range(parts - len(speeds)):
        at = min(range(len(speeds)), key=lambda i: (shares[i] + 1) / speeds[i])
        shares[at] += 1
    return shares


def _members(
    work: TrainingWork, pools: list[DevicePool], shares: list[int], parts: int, search: Search
) -> list[PoolLayout] | None:
    members = []
    for pool, share in zip(pools, shares, strict=True):
        best = search(replace(work, global_batch=work.global_batch * share // parts), pool).best
        if best is None:
            return None
        members.append(PoolLayout(pool, best))
    return members


def _joined(work: TrainingWork, members: list[PoolLayout], between_bytes_s: float | None) -> RunEstimate:
    """The slowest sets the pace; then gradients go around among the pools (a ring, as within one)."""
    slowest_first = sorted(members, key=lambda member: -member.estimate.step_s)
    step = slowest_first[0].estimate.step
    assert step is not None
    link = between_bytes_s or min(member.pool.device.network_bytes_s for member in members)
    links = min(member.case.devices for member in members)
    around = 2 * (len(members) - 1) / len(members)
    exchange = around * GRADIENT_BYTES * work.sizes.parameters / (links * link)
    if work.sync.local:
        exchange /= work.sync.every
    scale = 1 + exchange / step.seconds
    whole = StepTime(
        step.seconds + exchange, step.low * scale, step.high * scale, {**step.parts, EXCHANGE: exchange}
    )
    return estimate_team(work, tuple(slowest_first), whole)


def _moved(members: list[PoolLayout], shares: list[int]) -> list[int]:
    """Give one part of the slowest pool to the quickest."""
    order = sorted(range(len(members)), key=lambda i: members[i].estimate.step_s)
    moved = list(shares)
    if moved[order[-1]] > 1:
        moved[order[-1]] -= 1
        moved[order[0]] += 1
    return moved
