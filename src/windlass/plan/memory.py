"""How much memory training needs on each device.

Weights, gradients and two Adam moments are 16 bytes a weight in float32. Activations are what the
backward pass reads again, per token and layer: the inputs of every product, norm and activation
(Korthikanti et al. 2022, arXiv:2205.05198, section 4, in float32 and without a stored score matrix).
"""

from __future__ import annotations

from windlass.spec.layout import Layout
from windlass.spec.shape import Shape

STATE_BYTES_PER_WEIGHT = 16
PROCESS_BYTES = 400 << 20
LOSS_CHUNK_TOKENS = 1024
ALONE = Layout()


def training_bytes(shape: Shape, micro_batch_sequences: int, layout: Layout = ALONE) -> int:
    """Peak memory of a training process, of each if there are several.

    Weights and what belongs to them are divided along sharded, tp and pp; activations along tp, cp and pp,
    but the first stage of a pipeline holds those of pp micro-batches at a time.
    """
    tokens = micro_batch_sequences * shape.context // layout.cp
    kept = {"none": 1.0, "selective": 0.6, "full": 0.1}[layout.recompute]
    per_token_layer = 4 * (10 * shape.width + 2 * shape.attention_width + 4 * shape.ffn_width) * kept
    activations = tokens * (shape.layers * per_token_layer / layout.tp + 4 * 4 * shape.width)
    loss = 3 * 4 * min(tokens, LOSS_CHUNK_TOKENS) * shape.vocabulary / layout.tp
    state = STATE_BYTES_PER_WEIGHT * shape.parameters / (layout.sharded * layout.tp * layout.pp)
    return int(state + activations + loss) + PROCESS_BYTES
