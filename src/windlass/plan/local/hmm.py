"""The cost of a hidden Markov model on this machine, as windlass.train.hmm trains it.

Input: states, vocabulary, tokens, and the peak of this machine's matrix products. Output: bytes, and seconds
of an iteration. Forward, backward and the expected transitions take a multiply-add for every pair of states
and token (Rabiner 1989, equations 20 to 37); what is left, scaling and looking emissions up, takes about as
long for any number of states. Both shares were measured for 32 to 512 states (docs/statistical.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.spec.shape import HmmShape

PRODUCT_SHARE = {4: 0.64, 8: 0.32}
"""Of the peak in float32, by the bytes of a number."""
TOKEN_FLOPS = 30e3
"""As much as a token takes besides the products."""
ENTRY_FLOPS = 3e3
"""As much as an emission takes when counts become probabilities."""
SCORE_FLOPS = 2e5
"""As much as a held-out token takes besides its products, which one core does."""
START_S = 1.5
"""To load the text and find the first probabilities."""
BASE_BYTES = 400 << 20
"""A process with torch and TensorBoard's writer."""
BLOCK_NUMBERS, TABLES = 1 << 22, 8
"""Of one block in each thread: forward, backward, emitted (train/hmm/expectation.py), and what they are
made from on the way."""
TABLE_COPIES = 5
"""Of the emissions in 8 bytes: before, as read, as sums of integers, as counts, and after."""


@dataclass(frozen=True)
class Hidden:
    """The predicted cost of a run."""

    memory_bytes: int
    start_s: float
    iteration_s: float
    evaluation_s: float
    tokens_per_s: float


def hidden_cost(
    shape: HmmShape, *, tokens: int, held_out: int, threads: int, number_bytes: int, peak_flops: float
) -> Hidden:
    """Return the cost of a text of `tokens` tokens; `peak_flops` is that of `threads` threads together."""
    states, entries = shape.states, shape.states * shape.vocabulary
    token = (6.0 * states**2 / PRODUCT_SHARE[number_bytes] + TOKEN_FLOPS) / peak_flops
    iteration = tokens * token + ENTRY_FLOPS * entries / peak_flops
    block = min(BLOCK_NUMBERS, max(16 * shape.context * states, tokens // 16 * states))
    return Hidden(
        memory_bytes=BASE_BYTES + 8 * TABLE_COPIES * entries + threads * TABLES * number_bytes * block,
        start_s=START_S,
        iteration_s=iteration,
        evaluation_s=held_out * (20.0 * states**2 + SCORE_FLOPS) * threads / peak_flops,
        tokens_per_s=tokens / iteration,
    )
