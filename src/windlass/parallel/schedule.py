"""Decides which rank computes which stage, how long a step idles, and when another partition is faster.

Pure decisions: measurements in, ranks, shares and partitions out. The order in which a step runs its
micro-batches is torch's (`pipeline`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from windlass.parallel.partition import LayerCosts, cut_model, loads_of
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, Partition, Schedule
from windlass.spec.shape import Network
from windlass.spec.units import format_bytes

WORTH_IT = 0.10
"""A new partition moves weights and moments between processes and costs a restart of the step's buffers, and
the stages of an even pipeline differ by a few percent from step to step: less gain than this is noise."""


def place(
    layout: Layout,
    *,
    seed: int,
    hosts: Sequence[str],
    speeds: Sequence[float] | None = None,
    memories: Sequence[int] | None = None,
    cut: Partition | None = None,
    needs: Sequence[int] | None = None,
) -> list[int]:
    """Return the rank at each point of the layout's grid, in the order of its axes (C order).

    Hosts, speeds (any unit, larger is faster) and memories (bytes) are those of the ranks. Needs are the
    bytes that each position along the pipeline must hold (`memory.state_bytes`).

    Only whole blocks move, and only along pp: the ranks that share one stage keep their order, so
    neighbours along tp stay the neighbours that the launcher numbered next to each other. A block is as
    fast as its slowest rank and as large as its smallest.
    """
    each = layout.world // layout.pp
    blocks = [list(range(start, start + each)) for start in range(0, layout.world, each)]
    match layout.placement:
        case "sequential":
            order = list(range(layout.pp))
        case "round-robin":
            order = _spread([tuple(hosts[rank] for rank in block) for block in blocks])
        case "random":
            order = random.Random(seed).sample(range(layout.pp), layout.pp)
        case "load-aware":
            order = _by_load(
                costs=loads_of(cut, layout) if cut is not None else [1.0] * layout.pp,
                needs=needs or [0] * layout.pp,
                speeds=[min(speeds[rank] for rank in block) if speeds else 1.0 for block in blocks],
                memories=[min(memories[rank] for rank in block) if memories else None for block in blocks],
            )
    return [rank for block in order for rank in blocks[block]]


def propose_recut(
    cut: Partition,
    shape: Network,
    layout: Layout,
    stage_seconds: Sequence[float],
    *,
    costs: LayerCosts | None = None,
    memories: Sequence[int] | None = None,
) -> Partition | None:
    """Return a partition under which the slowest process would need a tenth less time, or None.

    Input: the seconds that each stage computed in a step, forward and backward, without waiting. A
    process's speed is the work of its stages over their seconds; the new partition is balanced for those
    speeds. After it was applied, the same measurement no longer promises a tenth, so it is not undone:
    a proposal comes back only when speeds have changed again.
    """
    seconds = [sum(stage_seconds[p.stage] for p in cut.at(position)) for position in range(layout.pp)]
    if layout.pp == 1 or min(seconds) <= 0:
        return None
    rebased = cut_model(shape, _as_cut(layout, cut), costs=costs)
    speeds = [load / took for load, took in zip(loads_of(rebased, layout), seconds, strict=True)]
    free = layout.model_copy(update={"cut": "balanced", "stages": None})
    better = cut_model(shape, free, costs=costs, speeds=speeds, memories=memories)
    if max(loads_of(better, layout, speeds)) > (1 - WORTH_IT) * max(seconds):
        return None
    return better.model_copy(update={"how": "balanced by the measured speed of the processes"})


def bubble(schedule: Schedule, pp: int, micro_batches: int, virtual: int = 1) -> float:
    """Return the share of a step in which a process idles, in theory.

    Assumptions: equal stages, free communication, and equal times of the forward pass, of the backward
    pass for inputs and of that for weights. The figures hold from pp micro-batches on, for zbv from 2 pp.

        gpipe, 1f1b           (p-1) / (m + p-1)       Narayanan et al. 2021, arXiv:2104.04473, 2.2.1
        interleaved, looped   (p-1) / (v m + p-1)     the same, 2.2.2; Lamy-Poirier 2022, 2211.05953
        zero-bubble           (p-1) / (3 v m + p-1)   ZB-H1: Qi et al. 2023, arXiv:2401.10241, section 2.3:
                                                      (p-1)(F + B - W) instead of (p-1)(F + B + W)
        zbv, dualpipe-v       (p-1) / (3 v m + p-1)   the same, section 6; DeepSeek-AI 2024, 2412.19437.
                                                      The V has no bubble inside, but its processes start
                                                      one after the other and end a step together
        asynchronous          0                       no process waits for the end of a step

    Tests check these figures against torch's own schedule tables.
    """
    if schedule == "asynchronous":
        return 0.0
    work = micro_batches * (virtual if schedule not in ("gpipe", "1f1b") else 1)
    if schedule in ("zero-bubble", "zbv", "dualpipe-v"):
        work *= 3
    return (pp - 1) / (work + pp - 1)


def _spread(hosts: Sequence[tuple[str, ...]]) -> list[int]:
    """Take blocks from each host in turn, so that neighbours along the pipeline are on different ones."""
    waiting: dict[tuple[str, ...], list[int]] = {}
    for block, host in enumerate(hosts):
        waiting.setdefault(host, []).append(block)
    order: list[int] = []
    while len(order) < len(hosts):
        order += [blocks.pop(0) for blocks in waiting.values() if blocks]
    return order


def _by_load(
    *,
    costs: Sequence[float],
    needs: Sequence[int],
    speeds: Sequence[float],
    memories: Sequence[int | None],
) -> list[int]:
    """Give the costliest position the fastest block whose memory suffices, and so on down.

    A block is taken only if the remaining blocks can still hold the remaining positions.
    """
    capacities = [float("inf") if memory is None else float(memory) for memory in memories]
    if not _all_fit(needs, capacities):
        raise BadInput(
            f"no placement fits: the stages need {_sizes(needs)}, the workers have {_sizes(capacities)}",
            hint="use more pp, tp or sharded processes, or a smaller model",
        )
    left, order = list(range(len(speeds))), [0] * len(costs)
    positions = sorted(range(len(costs)), key=lambda position: -costs[position])
    for done, position in enumerate(positions, start=1):
        after = [needs[later] for later in positions[done:]]
        chosen = min(
            (
                b
                for b in left
                if capacities[b] >= needs[position] and _all_fit(after, _without(left, b, capacities))
            ),
            key=lambda block: (-speeds[block], block),
        )
        left.remove(chosen)
        order[position] = chosen
    return order


def _all_fit(needs: Sequence[float], capacities: Sequence[float]) -> bool:
    """Whether all needs fit, one per block: if at all, then the largest into the largest."""
    pairs = zip(sorted(needs, reverse=True), sorted(capacities, reverse=True), strict=True)
    return all(need <= capacity for need, capacity in pairs)


def _without(blocks: Sequence[int], taken: int, capacities: Sequence[float]) -> list[float]:
    return [capacities[block] for block in blocks if block != taken]


def _sizes(sizes: Sequence[float]) -> str:
    return ", ".join("any" if size == float("inf") else format_bytes(size) for size in sizes)


def _as_cut(layout: Layout, cut: Partition) -> Layout:
    return layout.model_copy(update={"stages": tuple(p.until - p.first for p in cut.pieces)})
