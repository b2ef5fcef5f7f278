"""Alternatives to the choice: more devices, coarser arithmetic, replicas that synchronise less often.

Arithmetic in 8 bits and rare synchronisation change the result, if only a little, so they are never chosen
automatically: they are listed as ways, with what they would save.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from windlass.plan.cost.money import format_dollars
from windlass.plan.fleet.alternatives import Way
from windlass.plan.fleet.fixes import SuggestedChange, way_of
from windlass.plan.fleet.fleet_search import Problem
from windlass.plan.fleet.heterogeneous import together
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.run_estimate import RunEstimate, estimate_run
from windlass.plan.fleet.work import TrainingWork
from windlass.spec.sync import Sync
from windlass.spec.units import format_seconds

MIN_SAVING = 0.03
"""Of the time; less is not worth a sentence."""
NEAR_BATCH = 0.1
"""A batch that differs by no more learns as well with the same learning rate."""
RARELY = Sync(policy="diloco", every=50)


def with_more(problem: Problem, choice: RunEstimate, more: int) -> str:
    """Say what `more` devices of the first chosen kind would change.

    Where they cannot divide the batch, the batch grows with the devices.
    """
    work, devices = problem.work, choice.devices
    larger = replace(problem, pools=tuple(_grown(problem, choice, more)))
    best = _quickest(larger, work)
    batch = _grown_batch(work, choice, devices + more)
    words = ""
    if best is None or best.devices < devices + more:
        other = _quickest(larger, replace(work, global_batch=batch))
        if other is not None and (best is None or other.seconds < best.seconds):
            best, words = other, f" and a batch of {batch} instead of {work.global_batch} sequences"
    if best is None:
        return f"With {more} devices more no layout was found."
    cost = f" and cost {format_dollars(best.cost.dollars)}" if best.cost.dollars is not None else ""
    return (
        f"With {more} devices more{words} it would take {format_seconds(best.seconds)}"
        f" ({best.seconds / choice.seconds - 1:+.0%}){cost}, with {best.devices} in use."
    )


def savings(problem: Problem, choice: RunEstimate) -> Iterator[Way]:
    """Yield ways that are quicker on the same devices and change the result, if only a little."""
    if len(choice.members) > 1:
        return
    pool, work = choice.members[0].pool, problem.work
    tried = []
    if "float8" in pool.device.peak_flops and "float8" not in work.precisions:
        coarse = replace(work, precisions=("float8",))
        tried.append(
            SuggestedChange("float8", {"precision": "float8"}, "Matrix products in float8", coarse, pool)
        )
    if not work.sync.local:
        rare = replace(work, sync=RARELY)
        words = f"Replicas that agree every {RARELY.every} steps (diloco)"
        tried.append(SuggestedChange("diloco", {"sync.policy": "diloco"}, words, rare, pool))
    for change in (*tried, *_other_batches(work, choice)):
        best = problem.climb(change.work, pool).best
        seen = estimate_run(change.work, pool, best) if best is not None else None
        if seen is not None and seen.seconds < (1 - MIN_SAVING) * choice.seconds:
            yield way_of(change, seen)


def _other_batches(work: TrainingWork, choice: RunEstimate) -> list[SuggestedChange]:
    """The batch, within a tenth, that most devices can divide where some stay idle."""
    pool, batches = choice.members[0].pool, set()
    for model_devices in (2**power for power in range(pool.devices.bit_length())):
        replicas = pool.devices // model_devices
        nearest = max(1, round(work.global_batch / replicas)) * replicas
        if abs(nearest / work.global_batch - 1) <= NEAR_BATCH and replicas * model_devices > choice.devices:
            batches.add((-replicas * model_devices, abs(nearest - work.global_batch), nearest))
    words = "A batch of {} instead of {} sequences, which more devices can divide"
    return [
        SuggestedChange(
            "batch",
            {"batch_sequences": batch},
            words.format(batch, work.global_batch),
            replace(work, global_batch=batch),
            pool,
        )
        for _, _, batch in sorted(batches)[:1]
    ]


def _grown_batch(work: TrainingWork, choice: RunEstimate, devices: int) -> int:
    """A batch larger in proportion, that as many machines can divide."""
    machines = max(1, devices // choice.members[0].pool.per_machine)
    return -(-work.global_batch * devices // (choice.devices * machines)) * machines


def _grown(problem: Problem, choice: RunEstimate, more: int) -> Iterator[DevicePool]:
    lead = choice.members[0].pool
    chosen = {member.pool.device.name: member.pool for member in choice.members}
    for pool in problem.pools:
        if pool.device.name == lead.device.name:
            yield replace(lead, devices=lead.devices + more)
        elif pool.device.name in chosen:
            yield pool


def _quickest(problem: Problem, work: TrainingWork) -> RunEstimate | None:
    if len(problem.pools) > 1:
        return together(work, problem.pools, problem.climb, problem.between_bytes_s)
    best = problem.climb(work, problem.pools[0]).best
    return estimate_run(work, problem.pools[0], best) if best is not None else None
