"""The layers of each process of a pipeline, as parallel/partition.py divides a model by predicted cost.

That module knows the names of all weights; a plan needs only the numbers. Tests compare both.
"""

from __future__ import annotations

from windlass.spec.layout import Layout
from windlass.spec.shape import Network


def stage_layers(shape: Network, layout: Layout) -> list[int]:
    """Return the layers of each process along the pipeline axis."""
    if layout.stages is None and layout.cut != "fixed":
        return _balanced(shape, layout)
    each, over = divmod(shape.layers, layout.stage_count)
    equal = tuple(each + (stage < over) for stage in range(layout.stage_count))
    counts = [0] * layout.pp
    for stage, layers in enumerate(layout.stages or equal):
        counts[layout.position_of(stage)] += layers
    return counts


def _balanced(shape: Network, layout: Layout) -> list[int]:
    """Assign layers one by one, each to the process that is then least loaded."""
    layer = 2.0 * shape.layer_matrix_parameters
    layer += 4.0 * shape.attention_width * shape.seen_keys(shape.context)
    head = 2.0 * (shape.matrix_parameters - shape.layers * shape.layer_matrix_parameters)
    loads, counts = [layout.virtual * layer] * layout.pp, [layout.virtual] * layout.pp
    loads[layout.position_of(layout.stage_count - 1)] += head
    loads[0] += shape.width
    for _ in range(shape.layers - sum(counts)):
        taker = min(range(layout.pp), key=lambda position: loads[position])
        counts[taker] += 1
        loads[taker] += layer
    return counts
