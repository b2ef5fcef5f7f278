"""The memory that each process of a partition needs, and whether its device has it.

Counted are weights, gradients and Adam's moments, which do not depend on the batch; activations, which
recompute and smaller micro-batches can shrink, come on top.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.parallel.param_specs import features_of, kind_of
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, Partition, StageSlice
from windlass.spec.model.network import WeightSizes
from windlass.spec.shape import Network
from windlass.spec.units import format_bytes

STATE_BYTES_PER_WEIGHT = 16
"""Weight, gradient and two Adam moments, in float32."""
HINT = "use more pp, tp or sharded processes, or a smaller model"


def held_weights(cut: Partition, shape: Network, layout: Layout) -> list[int]:
    """Return how many weights the fullest process holds at each position along the pipeline."""
    held = [0] * layout.pp
    for piece in cut.pieces:
        held[piece.position] += _stage_weights(piece, shape, layout)
    return held


def state_bytes(cut: Partition, shape: Network, layout: Layout) -> list[int]:
    """Return the memory for weights, gradients and moments at each position along the pipeline."""
    return [STATE_BYTES_PER_WEIGHT * weights for weights in held_weights(cut, shape, layout)]


def check_memories(cut: Partition, shape: Network, layout: Layout, memories: Sequence[int]) -> None:
    """Refuse a partition that does not fit the memory of some device."""
    for position, needed in enumerate(state_bytes(cut, shape, layout)):
        if needed > memories[position]:
            layers = sum(piece.until - piece.first for piece in cut.at(position))
            raise BadInput(
                f"the device at position {position} has {format_bytes(memories[position])}, but {layers}"
                f" layer{'s' * (layers != 1)} and the embedding or head there need {format_bytes(needed)}",
                hint=HINT,
            )


def room_for_layers(minimal: Partition, shape: Network, layout: Layout, memories: Sequence[int]) -> list[int]:
    """Return how many layers fit each process, given the `minimal` partition with one layer per stage.

    Refuses memories in which no partition of this model fits.
    """
    check_memories(minimal, shape, layout, memories)
    layer = max(_held(shape.layer_weights(layer), shape, layout) for layer in range(shape.layers))
    capacities = [
        layout.virtual + (memory // STATE_BYTES_PER_WEIGHT - weights) // layer
        for memory, weights in zip(memories, held_weights(minimal, shape, layout), strict=True)
    ]
    if sum(capacities) < shape.layers:
        raise BadInput(
            f"no partition fits: the devices have room for {sum(capacities)} layers"
            f" ({', '.join(map(str, capacities))} along the pipeline), and the model has {shape.layers}",
            hint=HINT,
        )
    return capacities


def _stage_weights(piece: StageSlice, shape: Network, layout: Layout) -> int:
    """Count a stage's weights; an output matrix tied to the embedding counts once where both meet."""
    outside = dict(shape.embedding_weights()) if piece.embedding else {}
    outside |= shape.head_weights() if piece.head else {}
    layers = range(piece.first, piece.until)
    inside = sum(_held(shape.layer_weights(layer), shape, layout) for layer in layers)
    return inside + _held(outside, shape, layout)


def _held(weights: WeightSizes, shape: Network, layout: Layout) -> int:
    """Count what the fullest process has of some weights, which `tp` and `sharded` divide."""
    divided = features_of(shape)
    total = 0
    for name, size in weights.items():
        count = 1
        for dimension, length in enumerate(size):
            count *= -(-length // layout.tp) if divided.get(kind_of(name)) == dimension else length
        total += count
    return -(-total // layout.sharded)
