"""The protocol of runners, which compute the model: tokens of many sequences in, scores out.

A step gives its runner spans, each of them tokens of one sequence at successive positions. The runner
keeps the keys and values of these tokens in blocks, whose numbers are in the sequence's row of `tables`,
and returns the scores after the last tokens of each span. NativeRunner gives every token the same result
whatever else is in the step; TorchRunner, for GPUs and machines without the library, up to rounding.
StateRunner computes the statistical families and keeps their states in the blocks.

Legend: B rows of scores, V vocabulary, T tokens of a step, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.native import ThreadPool
from windlass.spec.shape import DecoderShape, HmmShape, MlpShape, NgramShape

Causal = DecoderShape | MlpShape | NgramShape | HmmShape
"""Shapes of models that can continue a text."""

BLOCK_TOKENS = 16


@dataclass(slots=True)
class Span:
    """Tokens of the sequence in `slot`, the first at `position`; scores are computed for the last `outs`."""

    slot: int
    position: int
    tokens: Sequence[int]
    outs: int = 1
    adapter: int = -1


@dataclass(frozen=True, slots=True)
class Computed:
    """Scores of the requested rows, in the order of spans; and the final states of all tokens, or None."""

    logits_BV: NDArray[np.float32]
    hidden_TD: NDArray[np.float32] | None = None


class Runner(Protocol):
    """One causal model on one device."""

    precision: str
    blocks: int
    """Number of blocks; the block numbers in tables are below it."""

    @property
    def shape(self) -> Causal:
        """Return the sizes of the model."""

    @property
    def thread_pool(self) -> ThreadPool | None:
        """The runner's threads, which the sampler may use between two steps."""

    def run(self, spans: Sequence[Span], tables: NDArray[np.int32], *, hidden: bool = False) -> Computed:
        """Compute a step. The returned arrays are valid until the next call."""

    def take_adapter(self, adapter: Adapter) -> int:
        """Load an adapter; return the number by which spans refer to it."""


def block_bytes(shape: Causal, *, half: bool) -> int:
    """Return the memory of one block: keys and values of 16 tokens in all layers, or states after them."""
    match shape:
        case NgramShape():
            return max(1, shape.order - 1) * 4 * BLOCK_TOKENS
        case HmmShape():
            return shape.states * 4 * BLOCK_TOKENS
        case MlpShape():
            return shape.window * 4 * BLOCK_TOKENS
    padded = -(-shape.head_width // 8) * 8
    return shape.layers * 2 * shape.kv_heads * padded * BLOCK_TOKENS * (2 if half else 4)
