"""How much memory a training process needs, where nothing of the machine is known but its size.

Weights, gradients and two Adam moments are 16 bytes a weight in float32; local/memory.py counts the rest.
"""

from __future__ import annotations

from windlass.plan.local.memory import held_bytes
from windlass.plan.local.step import StepShape
from windlass.spec.layout import Layout
from windlass.spec.shape import Network

PROCESS_BYTES = 400 << 20
"""Of a process that has imported torch and holds nothing."""
WASTE = 1.1
"""What an allocator takes for each byte that is asked of it."""
ALONE = Layout()


def training_bytes(shape: Network, micro_batch_sequences: int, layout: Layout = ALONE) -> int:
    """Peak memory of a training process, of the fullest if there are several.

    A step is taken to have several micro-batches: from the second on, gradients are there beside activations.
    """
    batch = 2 * layout.pp * layout.replicas * micro_batch_sequences
    step = StepShape(shape, layout, batch, micro_batch_sequences, threads=1)
    return int(WASTE * held_bytes(step)) + PROCESS_BYTES
