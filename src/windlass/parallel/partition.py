"""Partitions a model: layers among pipeline stages, features among tensor-parallel processes.

Input: a Network and a Layout; optionally costs, speeds and memories. Output: a Partition, which is data.

All layers of a family cost the same, so a partition is the number of layers of each stage. The balanced
partition assigns layers one by one, each to the process that is then least loaded. That is exact: the
largest load is least, because moving a layer could only raise the load of the process that takes it
above what it was when the layer was assigned (also with unequal speeds and limits).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.parallel.memory import check_memories, room_for_layers
from windlass.parallel.param_specs import features_of, kind_of
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, Partition, StageSlice
from windlass.spec.shape import Network

Span = tuple[int, int]


@dataclass(frozen=True)
class LayerCosts:
    """What one layer, the embedding and the head cost, all in one unit: FLOPs or seconds."""

    layer: float
    embedding: float
    head: float


def predicted_costs(shape: Network) -> LayerCosts:
    """Return FLOPs per token of a forward pass; a backward pass is twice that for each of them alike.

    A look-up multiplies nothing: it is counted as one operation for each value that it moves.
    """
    products = shape.matrix_parameters - shape.layers * shape.layer_matrix_parameters
    mixing = 4.0 * shape.attention_width * shape.seen_keys(shape.context)
    tables = sum(len(size) > 1 for size in shape.embedding_weights().values())
    mix = math.prod(shape.embedding_weights().get("mix.weight", (0,)))
    return LayerCosts(
        layer=2.0 * shape.layer_matrix_parameters + mixing,
        embedding=tables * shape.width + 2.0 * mix,
        head=2.0 * (products - mix),
    )


def cut_model(
    shape: Network,
    layout: Layout,
    *,
    costs: LayerCosts | None = None,
    speeds: Sequence[float] | None = None,
    memories: Sequence[int] | None = None,
) -> Partition:
    """Partition a model as its layout says.

    Speeds and memories (bytes) are those of the devices along the pipeline axis: faster ones get more
    layers, and none gets more weights than fit its memory with their gradients and moments.
    """
    _check_stages(layout, shape)
    _check_devices(layout, speeds, memories)
    known = costs or predicted_costs(shape)
    if layout.stages is not None:
        counts, how = list(layout.stages), "as the layout says"
    elif layout.cut == "fixed":
        counts, how = equal_counts(shape.layers, layout.stage_count), "equal numbers of layers"
    else:
        counts = _balanced_counts(shape, layout, known, speeds, memories)
        how = f"balanced by {'predicted' if costs is None else 'measured'} cost"
        how += " and the speed of the devices" if speeds is not None else ""
    cut = Partition(
        pieces=_pieces(counts, layout, known),
        features=features_of(shape) if layout.tp > 1 else {},
        how=how,
    )
    if memories is not None:
        check_memories(cut, shape, layout, memories)
    return cut


def equal_counts(layers: int, stages: int) -> list[int]:
    """Divide layers evenly; the first stages take what is left over, because the last has the head."""
    each, over = divmod(layers, stages)
    return [each + (stage < over) for stage in range(stages)]


def loads_of(cut: Partition, layout: Layout, speeds: Sequence[float] | None = None) -> list[float]:
    """Return the time that each process along the pipeline needs, in shares of the whole model's work."""
    return [
        sum(piece.cost for piece in cut.at(position)) / (speeds[position] if speeds is not None else 1.0)
        for position in range(layout.pp)
    ]


def box_of(name: str, size: Sequence[int], cut: Partition, tp_rank: int, tp: int) -> tuple[Span, ...]:
    """Return the part of a weight that one tensor-parallel process has: from where to where, by dimension.

    Parts are as long as the first; the last ones may be shorter or empty.
    """
    spans = [(0, length) for length in size]
    dimension = cut.features.get(kind_of(name))
    if dimension is not None and tp > 1:
        length = size[dimension]
        each = -(-length // tp)
        spans[dimension] = (min(length, tp_rank * each), min(length, (tp_rank + 1) * each))
    return tuple(spans)


def _balanced_counts(
    shape: Network,
    layout: Layout,
    costs: LayerCosts,
    speeds: Sequence[float] | None,
    memories: Sequence[int] | None,
) -> list[int]:
    """Balance the processes, then each process's own stages."""
    extras = [0.0] * layout.stage_count
    extras[0] += costs.embedding
    extras[-1] += costs.head
    stages_of: list[list[int]] = [[] for _ in range(layout.pp)]
    for stage in range(layout.stage_count):
        stages_of[layout.position_of(stage)].append(stage)
    each = _fill(
        shape.layers,
        starts=[sum(extras[stage] for stage in stages) for stages in stages_of],
        cost=costs.layer,
        speeds=speeds or [1.0] * layout.pp,
        minimum=layout.virtual,
        maximum=_max_layers(shape, layout, memories),
    )
    counts = [0] * layout.stage_count
    for stages, layers in zip(stages_of, each, strict=True):
        starts = [extras[stage] for stage in stages]
        alike, free = [1.0] * len(stages), [layers] * len(stages)
        filled = _fill(layers, starts=starts, cost=costs.layer, speeds=alike, minimum=1, maximum=free)
        for stage, count in zip(stages, filled, strict=True):
            counts[stage] = count
    return counts


def _fill(
    items: int,
    *,
    starts: Sequence[float],
    cost: float,
    speeds: Sequence[float],
    minimum: int,
    maximum: Sequence[int],
) -> list[int]:
    """Assign items one by one to the least loaded process; each gets `minimum` to `maximum` of them."""
    counts = [minimum] * len(starts)

    def load_with_one_more(taker: int) -> float:
        return (starts[taker] + cost * (counts[taker] + 1)) / speeds[taker]

    for _ in range(items - sum(counts)):
        takers = [taker for taker in range(len(counts)) if counts[taker] < maximum[taker]]
        counts[min(takers, key=load_with_one_more)] += 1
    return counts


def _max_layers(shape: Network, layout: Layout, memories: Sequence[int] | None) -> list[int]:
    """Return the maximum number of layers of each process."""
    if memories is None:
        return [shape.layers] * layout.pp
    minimal = Partition(
        pieces=_pieces([1] * layout.stage_count, layout, LayerCosts(1, 0, 0)), features={}, how="minimal"
    )
    return room_for_layers(minimal, shape, layout, memories)


def _pieces(counts: Sequence[int], layout: Layout, costs: LayerCosts) -> tuple[StageSlice, ...]:
    whole = costs.embedding + costs.layer * sum(counts) + costs.head
    pieces, first, last = [], 0, len(counts) - 1
    for stage, count in enumerate(counts):
        cost = costs.layer * count + costs.embedding * (stage == 0) + costs.head * (stage == last)
        pieces.append(
            StageSlice(
                stage=stage,
                first=first,
                until=first + count,
                embedding=stage == 0,
                head=stage == last,
                position=layout.position_of(stage),
                cost=cost / whole,
            )
        )
        first += count
    return tuple(pieces)


def _check_stages(layout: Layout, shape: Network) -> None:
    if layout.stage_count > shape.layers:
        raise BadInput(f"{layout.stage_count} stages, but the model has only {shape.layers} layers")
    if layout.stages is not None and sum(layout.stages) != shape.layers:
        raise BadInput(f"stages hold {sum(layout.stages)} layers in all, the model {shape.layers}")


def _check_devices(layout: Layout, speeds: Sequence[float] | None, memories: Sequence[int] | None) -> None:
    for what, given in (("speeds", speeds), ("memories", memories)):
        if given is not None and len(given) != layout.pp:
            raise BadInput(f"{len(given)} {what} are given, but pp = {layout.pp} devices divide the layers")
    if speeds is not None and min(speeds) <= 0:
        raise BadInput(f"a device cannot have the speed {min(speeds)}; it must be above 0")
