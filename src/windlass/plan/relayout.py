"""Chooses the layout of an elastic run for the workers that are present.

Input: a run and the number of workers that can train. Output: a layout and why, or why to wait. The batch
stays the same, so the result does too; only its division changes. The job's own layout is preferred. With
other numbers of workers, layouts are ranked by the work they are expected to do:

    replicas that are busy to the end x processes of a replica x what each axis keeps x likeness to the job's

A deterministic run keeps the division of the job: the gradients of its replicas are added up in one order,
however few workers compute them, so only whole replicas move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from windlass.plan.hyperparameters import choose_micro
from windlass.plan.memory import training_bytes
from windlass.plan.search import MICRO_BATCH_TOKENS
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, check_layout
from windlass.spec.run import Run
from windlass.spec.shape import DecoderShape, Network
from windlass.spec.units import format_bytes

KEPT = {"dp": 1.0, "sharded": 0.89, "cp": 0.75, "tp": 0.75, "pp": 0.74}
"""Share of the speed that each doubling of an axis keeps (docs/benchmarks.md; cp is taken to be as tp)."""
LEFT_OUT, TAKEN_UP, RESIZED = 0.8, 0.9, 0.98
"""Worth of a layout that leaves out an axis of the job, has one that the job has not, or another degree of
one: the author of the job had reasons, such as links and memory, that no factor knows."""
MODEL_AXES = ("sharded", "cp", "tp", "pp")
MAX_WORKERS = 65536


@dataclass(frozen=True)
class Relaid:
    """A layout to continue with."""

    layout: Layout
    used: int
    """Workers that train; the others stay ready."""
    micro_batch_sequences: int
    reason: str


@dataclass(frozen=True)
class Waits:
    """These workers cannot train; wait for others."""

    reason: str


@dataclass(frozen=True)
class LayoutDegrees:
    """Candidate degrees, not yet a layout."""

    degrees: dict[str, int]
    work: float
    """Expected work, in that of one process alone."""
    worth: float


def relayout(run: Run, workers: int, *, memory_bytes: int | None = None) -> Relaid | Waits:
    """Return the best layout for a number of workers; `memory_bytes` is the limit of each."""
    workers = min(workers, MAX_WORKERS)
    own, minimum = run.job.layout, run.job.elastic.min_workers
    if workers < minimum:
        return Waits(f"{_workers(workers)} left, and the job needs at least {minimum}")
    if workers == own.world and _possible(own, run, run.micro_batch_sequences):
        return Relaid(own, own.world, run.micro_batch_sequences, f"the job's own layout, {own}")
    if run.job.elastic.deterministic:
        return _whole_replicas(run, workers)
    found = list(_fitting(run, workers, memory_bytes))
    if not found:
        return Waits(_why_nothing(run, workers, memory_bytes))
    _, layout, micro = found[0]
    why = f"{_workers(workers)} for {_wanted(own)}: {_compared(found)}{_spare(workers - layout.world)}"
    return Relaid(layout, layout.world, micro, why)


def _whole_replicas(run: Run, workers: int) -> Relaid | Waits:
    """Move replicas of the job's layout together, keeping their batches and micro-batches.

    As few workers as are equally fast: 3 workers are no faster with 4 replicas than 2, and one stays ready.
    """
    own, copy = run.job.layout, run.job.layout.world // run.job.layout.dp
    room = min(workers // copy, own.dp)
    if room == 0:
        return Waits(
            f"{_workers(workers)} left, and one replica of the deterministic layout {own} takes {copy}"
        )
    dp = math.ceil(own.dp / math.ceil(own.dp / room))
    if _needs_equal(run, own.pp):
        dp = max(d for d in range(1, room + 1) if own.dp % d == 0)
    layout = own if dp == own.dp else _changed(own, {"dp": dp, "shares": _together(own, dp)})
    if not _possible(layout, run, run.micro_batch_sequences):
        return Waits(f"{_workers(workers)} left, and the deterministic layout {own} cannot become dp={dp}")
    why = f"{_workers(workers)} for {_wanted(own)}: deterministic, so {own.dp} replicas lie on {dp}"
    return Relaid(layout, layout.world, run.micro_batch_sequences, why + _spare(workers - layout.world))


def _together(own: Layout, dp: int) -> tuple[int, ...] | None:
    """Return the shares of replicas that each stand for several of the job's, in their order."""
    weights = own.shares or (1,) * own.replicas
    bounds = [own.dp * place // dp for place in range(dp + 1)]
    shares = tuple(
        sum(weights[replica * own.sharded + shard] for replica in range(first, until))
        for first, until in pairwise(bounds)
        for shard in range(own.sharded)
    )
    return None if len(set(shares)) == 1 else shares


def _fitting(run: Run, workers: int, memory_bytes: int | None) -> Iterator[tuple[LayoutDegrees, Layout, int]]:
    """Yield the best two layouts that model, batch and memory allow, with their micro-batches."""
    ranked = sorted(_candidates(run, workers), key=lambda c: (-c.worth, math.prod(c.degrees.values())))
    found = 0
    for candidate in ranked:
        layout = _built(run, candidate.degrees)
        micro = _micro_of(run, layout, memory_bytes)
        if micro is not None and _possible(layout, run, micro):
            yield candidate, layout, micro
            found += 1
        if found == 2:
            return


def _candidates(run: Run, workers: int) -> Iterator[LayoutDegrees]:
    """Yield candidate degrees; more workers than the job has only add replicas."""
    own, batch = run.job.layout, run.batch_sequences
    divisors = [d for d in range(1, min(batch, workers) + 1) if batch % d == 0]
    for model in _models(run, workers):
        room = workers // math.prod(model.values())
        if room == 0:
            continue
        equal = _needs_equal(run, model["pp"])
        for sharded in [own.sharded] if workers > own.world else _degrees(min(room, batch), own.sharded):
            dp = _max_equal(divisors, room, sharded) if equal else _min_idle(batch, room, sharded)
            if dp and batch // (dp * sharded) >= model["pp"]:
                yield _weighed(own, {**model, "dp": dp, "sharded": sharded}, batch)


def _models(run: Run, workers: int) -> Iterator[dict[str, int]]:
    """Yield how one replica could be divided."""
    own = run.job.layout
    if workers > own.world:
        yield {"tp": own.tp, "pp": own.pp, "cp": own.cp}
        return
    for tp in _dividing(run.network, workers):
        for pp in _degrees(min(workers // tp, run.network.layers), own.pp):
            for cp in {1, own.cp}:
                yield {"tp": tp, "pp": pp, "cp": cp}


def _weighed(own: Layout, degrees: dict[str, int], batch: int) -> LayoutDegrees:
    replicas = degrees["dp"] * degrees["sharded"]
    busy = batch / math.ceil(batch / replicas)  # the largest share decides when a step ends
    kept = math.prod(KEPT[axis] ** math.log2(degree) for axis, degree in degrees.items())
    work = busy * degrees["tp"] * degrees["pp"] * degrees["cp"] * kept
    return LayoutDegrees(degrees, work, work * math.prod(_likeness(own, degrees)))


def _likeness(own: Layout, degrees: dict[str, int]) -> Iterator[float]:
    for axis in MODEL_AXES:
        before, after = int(getattr(own, axis)), degrees[axis]
        if before != after:
            yield LEFT_OUT if after == 1 else TAKEN_UP if before == 1 else RESIZED


def _degrees(maximum: int, own: int) -> list[int]:
    """Return candidate degrees of an axis: powers of two, the job's own, and the maximum."""
    powers = (1 << exponent for exponent in range(maximum.bit_length()))
    return sorted({*powers, maximum, *([own] if own <= maximum else [])} - {0})


def _dividing(shape: Network, workers: int) -> list[int]:
    sizes = [shape.heads, shape.ffn_width, *([shape.kv_heads] if isinstance(shape, DecoderShape) else [])]
    common = math.gcd(*sizes)
    return [tp for tp in range(1, min(common, workers) + 1) if common % tp == 0]


def _max_equal(divisors: list[int], room: int, sharded: int) -> int:
    """Return the largest dp whose replicas get equal shares, 0 if there is none."""
    fitting = [d for d in divisors if d % sharded == 0 and d <= room]
    return max(fitting, default=0) // sharded


def _min_idle(batch: int, room: int, sharded: int) -> int:
    """Return the smallest dp with which the largest share is as small as it can be."""
    max_dp = min(room, batch) // sharded
    if max_dp == 0:
        return 0
    largest = math.ceil(batch / (max_dp * sharded))
    return math.ceil(math.ceil(batch / largest) / sharded)


def _built(run: Run, degrees: dict[str, int]) -> Layout:
    """Return the job's layout with other degrees; what belongs to another pipeline is left out."""
    own, batch = run.job.layout, run.batch_sequences
    replicas = degrees["dp"] * degrees["sharded"]
    each, more = divmod(batch, replicas)
    shares = (each + 1,) * more + (each,) * (replicas - more) if more else None
    parts = own.micro_batches
    kept = parts if parts and shares is None and each % parts == 0 and degrees["pp"] == own.pp else None
    changes: dict[str, object] = {**degrees, "shares": shares, "micro_batches": kept}
    if degrees["pp"] != own.pp:
        changes |= {"schedule": "1f1b", "virtual": 1, "stages": None}
    elif own.asynchronous and (degrees["sharded"] > 1 or degrees["cp"] > 1):
        changes["schedule"] = "1f1b"
    return _changed(own, changes)


def _micro_of(run: Run, layout: Layout, memory_bytes: int | None) -> int | None:
    """Return the largest micro-batch that is fast and fits, None if none does.

    The job's own micro-batch fits, whatever the estimate says: the run was started with it.
    """
    own = run.job.layout
    alike = all(getattr(layout, axis) == getattr(own, axis) for axis in MODEL_AXES)
    quick = max(run.micro_batch_sequences, MICRO_BATCH_TOKENS // run.network.context)
    max_micro = run.job.train.micro_batch_sequences or quick
    while max_micro >= 1:
        micro = _micro_up_to(run, layout, max_micro)
        if memory_bytes is None or (alike and micro <= run.micro_batch_sequences):
            return micro
        if training_bytes(run.network, micro, layout) <= memory_bytes:
            return micro
        max_micro = min(max_micro, micro) // 2
    return None


def _micro_up_to(run: Run, layout: Layout, max_micro: int) -> int:
    if layout.shares is not None:
        return min(max_micro, max(layout.shares))
    free = run.job.train.model_copy(update={"micro_batch_sequences": None})
    return choose_micro(free, layout, run.batch_sequences, max_micro)


def _changed(layout: Layout, changes: dict[str, object]) -> Layout:
    return Layout.model_validate({**layout.model_dump(), **changes})


def _possible(layout: Layout, run: Run, micro: int) -> bool:
    try:
        check_layout(layout, run.network, run.batch_sequences, micro)
    except BadInput:
        return False
    return True


def _needs_equal(run: Run, pp: int) -> bool:
    """Whether all replicas must get equal shares: in pipelines, and where replicas make local updates."""
    return pp > 1 or run.job.sync.local


def _why_nothing(run: Run, workers: int, memory_bytes: int | None) -> str:
    if next(_fitting(run, workers, None), None) is None:
        return f"{_workers(workers)}: no layout of them can divide this model and its batch"
    assert memory_bytes is not None
    needed = min(
        training_bytes(run.network, 1, _built(run, candidate.degrees))
        for candidate in _candidates(run, workers)
    )
    room = format_bytes(memory_bytes)
    return f"{_workers(workers)} with {room} each: the smallest part takes {format_bytes(needed)}"


def _compared(found: list[tuple[LayoutDegrees, Layout, int]]) -> str:
    (best, layout, _), *others = found
    text = f"{_named(layout)} does the work of {best.work:.3g}"
    for other, another, _ in others:
        text += f", {_named(another)} would do that of {other.work:.3g}"
        if other.work > best.work:
            text += " but is less like the job's"
    return text


def _named(layout: Layout) -> str:
    if layout.shares is None:
        return str(layout)
    if len(layout.shares) > 8:
        return f"{layout} (shares {max(layout.shares)} and {min(layout.shares)})"
    return f"{layout} (shares {':'.join(map(str, layout.shares))})"


def _wanted(own: Layout) -> str:
    return "a job of one process" if own.world == 1 else f"a job of {own.world} ({own})"


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _spare(count: int) -> str:
    return f"; {_workers(count)} stay{'s' * (count == 1)} ready" if count else ""
