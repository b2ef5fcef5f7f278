"""The memory of a training process, where the machine has no profile.

Weights, gradients and two Adam moments are 16 bytes a weight in float32; `local.memory` counts the rest.
"""

from __future__ import annotations

from windlass.plan.local.memory import held_bytes
from windlass.plan.local.step import StepShape
from windlass.spec.layout import Layout
from windlass.spec.shape import Network

PROCESS_BYTES = 400 << 20
"""Of a process that has imported torch and holds nothing."""
WASTE = 1.1
"""Bytes that the allocator takes per requested byte."""
ALONE = Layout()


def training_bytes(shape: Network, micro_batch_sequences: int, layout: Layout = ALONE) -> int:
    """Peak memory of a training process, of the fullest if there are several.

    A step is taken to have several micro-batches: from the second on, gradients are in memory together with
    activations.
    """
    batch = 2 * layout.pp * layout.replicas * micro_batch_sequences
    step = StepShape(shape, layout, batch, micro_batch_sequences, threads=1)
    return int(WASTE * held_bytes(step)) + PROCESS_BYTES
