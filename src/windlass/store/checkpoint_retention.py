"""Which checkpoints are kept: a pure function."""

from __future__ import annotations

from collections.abc import Iterable


def retained(steps: Iterable[int], *, keep: int, keep_every: int | None = None) -> set[int]:
    """Return the steps to keep: the newest `keep`, and the first of every `keep_every` steps.

    A step kept by `keep_every` is kept for ever: no later step can be the first of the same interval.
    """
    ordered = sorted(set(steps))
    stays = set(ordered[-keep:])
    if keep_every is not None:
        first: dict[int, int] = {}
        for step in ordered:
            first.setdefault(step // keep_every, step)
        stays |= set(first.values())
    return stays
