"""The smallest changes that would help where there is no plan.

Every fix is tried first: the search runs again with the change, so each suggestion works.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from windlass.plan.cost.catalogue import PROCESSOR, devices
from windlass.plan.cost.money import format_dollars
from windlass.plan.cost.scaled import smaller_sizes
from windlass.plan.fleet.alternatives import Way, counted_weights
from windlass.plan.fleet.constraints import Binding
from windlass.plan.fleet.fleet_search import Problem, SearchResult, fewest
from windlass.plan.fleet.pools import DevicePool
from windlass.plan.fleet.run_estimate import RunEstimate, estimate_run
from windlass.plan.fleet.work import TrainingWork
from windlass.plan.loss import expected_loss
from windlass.spec.fleet import PER_MACHINE
from windlass.spec.units import format_count, format_seconds

MAX_TIMES = 64
"""More devices are tried up to this many times the fleet."""
MIN_CONTEXT = 512


@dataclass(frozen=True)
class SuggestedChange:
    """A change of the request."""

    way: str
    changes: dict[str, Any]
    words: str
    work: TrainingWork
    pool: DevicePool


def fixes(problem: Problem, binding: Binding, seen: SearchResult) -> Iterator[Way]:
    """Yield, of each kind of change, the smallest that helps."""
    for _, kind in groupby(_changes(problem, binding, seen), key=lambda change: change.way):
        tried = (_try(problem, change) for change in kind)
        helps = next((way for way in tried if way is not None), None)
        if helps is not None:
            yield helps
    yield from _later(problem, seen)


def _changes(problem: Problem, binding: Binding, seen: SearchResult) -> Iterator[SuggestedChange]:
    """Yield changes to try, the smallest of each kind first, and kinds that change the result last."""
    largest = max(problem.pools, key=lambda pool: pool.devices)
    yield from _unpinned(problem, largest)
    if binding == "divisibility":
        yield from _batches(problem, largest)
    if binding == "money":
        yield from _prices(problem, seen)
    else:
        yield from _more(problem, largest)
    yield from _other_devices(problem, largest, binding)
    yield from _coarser(problem, largest)
    if binding == "memory":
        yield from _shorter(problem, largest)
        yield from _smaller(problem, largest, seen)


def _unpinned(problem: Problem, pool: DevicePool) -> Iterator[SuggestedChange]:
    """Give the search back a choice that was made for it."""
    work = problem.work
    for name in work.pins:
        rest = {other: value for other, value in work.pins.items() if other != name}
        words = f"Leave {name} open instead of {work.pins[name]}"
        yield SuggestedChange(name, {name: None}, words, replace(work, pins=rest), pool)


def _batches(problem: Problem, pool: DevicePool) -> Iterator[SuggestedChange]:
    work = problem.work
    for unit in (8, 64, pool.devices):
        batch = -(-work.global_batch // unit) * unit
        words = f"A batch of {batch} sequences instead of {work.global_batch}"
        yield SuggestedChange(
            "batch", {"batch_sequences": batch}, words, replace(work, global_batch=batch), pool
        )


def _more(problem: Problem, pool: DevicePool) -> Iterator[SuggestedChange]:
    """The fewest devices that would do: double until it works, then halve the gap.

    Where the batch cannot be divided further, it grows with the devices.
    """
    for grows in (False, True):
        for times in (2**power for power in range(1, MAX_TIMES.bit_length())):
            batch = problem.work.global_batch * (times if grows else 1)
            work = replace(problem.work, global_batch=batch)
            larger = replace(pool, devices=pool.devices * times, per_machine=_machine(pool))
            enough = fewest(replace(problem, work=work), larger, SearchResult())
            if enough is not None:
                count = enough.members[0].pool.devices
                changes = {"devices": count, **({"batch_sequences": batch} if grows else {})}
                words = f"{count} devices instead of {pool.devices}"
                words += f" and a batch of {batch} instead of {problem.work.global_batch}" if grows else ""
                yield SuggestedChange("devices", changes, words, work, replace(larger, devices=count))
                return


def _prices(problem: Problem, seen: SearchResult) -> Iterator[SuggestedChange]:
    """The price at which the run with the fewest device hours would meet the budget."""
    early = [run for run in seen.runs if problem.limits.late(run) <= 1]
    if problem.limits.dollars is None or not early:
        return
    cheapest = min(early, key=lambda run: run.cost.device_hours)
    price = math.floor(problem.limits.dollars / cheapest.cost.device_hours * 100) / 100
    pool = cheapest.members[0].pool
    if len(cheapest.members) == 1 and price > 0:
        cheap = replace(pool, device=replace(pool.device, dollars_h=(price, price)))
        words = f"A price of ${price:.2f} for an hour of one device"
        yield SuggestedChange("price", {"price_h": price}, words, problem.work, cheap)


def _later(problem: Problem, seen: SearchResult) -> Iterator[Way]:
    """The earliest end within the budget, where the deadline excludes it."""
    limits = problem.limits
    paid = [run for run in seen.runs if limits.dear(run) <= 1]
    if limits.dollars is not None and limits.deadline_s is not None and paid:
        best = min(paid, key=lambda run: run.seconds)
        change = SuggestedChange(
            "deadline", {"deadline_s": best.seconds}, "A later end", problem.work, best.members[0].pool
        )
        yield way_of(change, best)


def _machine(pool: DevicePool) -> int:
    """Devices of a machine when there are many; a lone one need not be full."""
    return pool.per_machine if pool.devices > pool.per_machine else max(PER_MACHINE, pool.per_machine)


def _other_devices(problem: Problem, pool: DevicePool, binding: Binding) -> Iterator[SuggestedChange]:
    """As many devices of a kind that has more memory, is quicker or cheaper; the smallest change first."""
    own = pool.device
    for device in sorted(devices().values(), key=lambda device: device.memory_bytes):
        stronger = max(device.peak_flops.values()) > max(own.peak_flops.values())
        helps = (
            device.memory_bytes > own.memory_bytes if binding == "memory" else binding == "money" or stronger
        )
        if helps and device.name != own.name and not device.name.startswith(PROCESSOR):
            words = f"{pool.devices} x {device.name} instead of {own.name}"
            other = replace(pool, device=replace(device, network_bytes_s=own.network_bytes_s))
            yield SuggestedChange("device", {"device": device.name}, words, problem.work, other)


def _coarser(problem: Problem, pool: DevicePool) -> Iterator[SuggestedChange]:
    """Arithmetic in 8 bits, where the device has it."""
    if "float8" in pool.device.peak_flops and "float8" not in problem.work.precisions:
        work = replace(problem.work, precisions=("float8",))
        yield SuggestedChange("float8", {"precision": "float8"}, "Matrix products in float8", work, pool)


def _shorter(problem: Problem, pool: DevicePool) -> Iterator[SuggestedChange]:
    """The same tokens in shorter sequences."""
    work, sequence = problem.work, problem.work.sequence // 2
    while sequence >= MIN_CONTEXT:
        batch = work.global_batch * work.sequence // sequence
        words = f"A context of {sequence} tokens instead of {work.sequence}"
        yield SuggestedChange(
            "context",
            {"context": sequence},
            words,
            replace(work, sequence=sequence, global_batch=batch),
            pool,
        )
        sequence //= 2


def _smaller(problem: Problem, pool: DevicePool, seen: SearchResult) -> Iterator[SuggestedChange]:
    assert seen.smallest is not None
    for sizes in smaller_sizes(seen.smallest.case):
        words = f"{format_count(sizes.parameters)} weights: {sizes.layers} layers of width {sizes.width}"
        changes = {"layers": sizes.layers, "width": sizes.width, "heads": sizes.heads}
        yield SuggestedChange("smaller", changes, words, replace(problem.work, sizes=sizes), pool)


def _try(problem: Problem, change: SuggestedChange) -> Way | None:
    """Search again with the change; None if it does not help."""
    found = problem.climb(change.work, change.pool)
    if found.best is None:
        return None
    best = estimate_run(change.work, change.pool, found.best)
    if not problem.limits.keeps(best):
        return None
    return way_of(change, best)


def way_of(change: SuggestedChange, best: RunEstimate) -> Way:
    """Describe a change with its time, cost and loss."""
    work = change.work
    loss = expected_loss(counted_weights(work.sizes), work.tokens, work.tokens, work.sizes.vocabulary)
    cost = f" and costs {format_dollars(best.cost.dollars)}" if best.cost.dollars is not None else ""
    sentence = f"{change.words}: it takes {format_seconds(best.seconds)}{cost}."
    return Way(change.way, change.changes, best.seconds, best.cost.dollars, loss, sentence)
