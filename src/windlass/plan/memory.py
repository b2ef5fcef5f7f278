"""How much memory training needs on one device.

Weights, gradients and two Adam moments are 16 bytes a weight in float32. Activations are what the
backward pass reads again, per token and layer: the inputs of every product, norm and activation
(Korthikanti et al. 2022, arXiv:2205.05198, section 4, in float32 and without a stored score matrix).
"""

from __future__ import annotations

from windlass.spec.shape import Shape

STATE_BYTES_PER_WEIGHT = 16
PROCESS_BYTES = 400 << 20
LOSS_CHUNK_TOKENS = 1024


def training_bytes(shape: Shape, micro_batch_sequences: int) -> int:
    """Peak memory of a training process."""
    tokens = micro_batch_sequences * shape.context
    per_token_layer = 4 * (10 * shape.width + 2 * shape.attention_width + 4 * shape.ffn_width)
    activations = tokens * (shape.layers * per_token_layer + 4 * 4 * shape.width)
    loss = 3 * 4 * min(tokens, LOSS_CHUNK_TOKENS) * shape.vocabulary
    return STATE_BYTES_PER_WEIGHT * shape.parameters + activations + loss + PROCESS_BYTES
