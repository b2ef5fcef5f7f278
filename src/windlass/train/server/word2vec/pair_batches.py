"""The batches of pairs of a word2vec stage.

A block of tokens (train.word2vec.learner) is `UNITS` positions, whatever its length; a batch is half of its
groups, in order. Workers that train at the same time each move a frequent row nearly to its optimum; added up
over a whole block, the row would overshoot (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from windlass.train.word2vec.learner import blocks_of

BATCHES = 2
"""Batches per block."""
SIZE = 5000
"""Positions of a batch."""
UNITS = BATCHES * SIZE
"""Positions of a block."""


@dataclass(frozen=True)
class BatchRange:
    """A part of a block: pass, tokens start .. stop, and groups first .. until in UNITS of the block."""

    epoch: int
    start: int
    stop: int
    first: int
    until: int


@dataclass(frozen=True)
class PairBatches:
    """All passes over a text."""

    tokens: int
    epochs: int

    @cached_property
    def blocks(self) -> list[range]:
        """Blocks of one pass."""
        return blocks_of(self.tokens)

    @property
    def steps_of_a_pass(self) -> int:
        return BATCHES * len(self.blocks)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_of_a_pass

    def place(self, positions: range) -> BatchRange:
        """Return the range of positions; they must be of one block."""
        block, first = divmod(positions.start, UNITS)
        epoch, number = divmod(block, len(self.blocks))
        tokens = self.blocks[number]
        return BatchRange(epoch, tokens.start, tokens.stop, first, first + len(positions))

    def step_at(self, epoch: int, position: int) -> int:
        """Return the step that begins at the first token of a block in a pass."""
        number = next(n for n, block in enumerate(self.blocks) if block.start == position)
        return BATCHES * (epoch * len(self.blocks) + number) if epoch < self.epochs else self.steps

    def position_at(self, step: int) -> tuple[int, int]:
        """Return pass and token position at a step; the end of a pass is (pass, tokens), not (pass + 1,
        0)."""
        epoch, batch = divmod(step, self.steps_of_a_pass)
        if step and batch == 0:
            return epoch - 1, self.tokens
        return epoch, self.blocks[batch // BATCHES].start
