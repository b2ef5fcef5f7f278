"""The part of a weight that one process holds, as a plain tensor.

However a weight is divided, from here on it is a box of the whole: the optimizer, clipping, the exchange
between replicas and checkpoints need to know nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

Span = tuple[int, int]


@dataclass(frozen=True)
class Slice:
    """A block of a tensor: from where to where along each dimension."""

    spans: tuple[Span, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.spans)

    @property
    def empty(self) -> bool:
        return 0 in self.shape

    def divided(self, dimension: int, parts: int, part: int) -> Slice:
        """Return one of `parts` blocks along a dimension; the last ones may be smaller or empty."""
        start, stop = self.spans[dimension]
        size = -(-(stop - start) // parts)
        span = (min(stop, start + part * size), min(stop, start + (part + 1) * size))
        return Slice((*self.spans[:dimension], span, *self.spans[dimension + 1 :]))

    def overlap(self, other: Slice) -> Slice | None:
        """Return the intersection of both boxes, or None."""
        spans = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.spans, other.spans, strict=True))
        return None if any(start >= stop for start, stop in spans) else Slice(spans)

    def within(self, outer: Slice) -> tuple[slice, ...]:
        """Return where this box lies in a tensor that holds `outer`."""
        return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(self.spans, outer.spans, strict=True))


def whole(shape: Sequence[int]) -> Slice:
    return Slice(tuple((0, size) for size in shape))


@dataclass(frozen=True)
class ParamShard:
    """The box of one weight that this process updates."""

    name: str
    """The name that the model's code gives the whole weight."""
    shape: tuple[int, ...]
    """The shape of the whole."""
    box: Slice
    tensor: nn.Parameter
    """The values, shaped as the box. Its `grad` is set when a step's gradients are ready."""
    copies: int
    """How many processes of one replica hold this very box: norms count it once."""


def holdings_of(model: nn.Module) -> list[ParamShard]:
    """Return the shards of a process that holds the whole model: every weight whole."""
    return [
        ParamShard(name, tuple(p.shape), whole(p.shape), p, copies=1) for name, p in model.named_parameters()
    ]
