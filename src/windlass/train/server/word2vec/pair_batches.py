"""Which pairs the batches of a word2vec stage are.

A block of tokens (train.word2vec.learner) is `UNITS` positions, whatever its length; a batch is half of it,
so many of its groups in their order. Workers that learn at the same time each move a frequent row nearly to
where it belongs; added up over a whole block, that is too far (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from windlass.train.word2vec.learner import blocks_of

BATCHES = 2
"""Of one block."""
SIZE = 5000
"""Positions of a batch."""
UNITS = BATCHES * SIZE
"""Positions of a block."""


@dataclass(frozen=True)
class BatchRange:
    """A stretch of a block: which pass and tokens, and which share of the groups."""

    epoch: int
    start: int
    stop: int
    first: int
    until: int
    """Of UNITS."""


@dataclass(frozen=True)
class PairBatches:
    """All passes over a text."""

    tokens: int
    epochs: int

    @cached_property
    def blocks(self) -> list[range]:
        """Of one pass."""
        return blocks_of(self.tokens)

    @property
    def steps_of_a_pass(self) -> int:
        return BATCHES * len(self.blocks)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_of_a_pass

    def place(self, positions: range) -> BatchRange:
        """Return where positions lie; they are of one block."""
        block, first = divmod(positions.start, UNITS)
        epoch, number = divmod(block, len(self.blocks))
        tokens = self.blocks[number]
        return BatchRange(epoch, tokens.start, tokens.stop, first, first + len(positions))

    def step_at(self, epoch: int, position: int) -> int:
        """Return the step that begins with a token of a pass, where a block does."""
        number = next(n for n, block in enumerate(self.blocks) if block.start == position)
        return BATCHES * (epoch * len(self.blocks) + number) if epoch < self.epochs else self.steps

    def standing(self, step: int) -> tuple[int, int]:
        """Return the pass and the token to go on with; the end of a pass is told as that."""
        epoch, batch = divmod(step, self.steps_of_a_pass)
        if step and batch == 0:
            return epoch - 1, self.tokens
        return epoch, self.blocks[batch // BATCHES].start
