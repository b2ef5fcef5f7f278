"""Which checkpoints stay: a pure decision."""

from __future__ import annotations

from collections.abc import Iterable


def retained(steps: Iterable[int], *, keep: int, keep_every: int | None = None) -> set[int]:
    """Return the steps that stay: the newest `keep`, and the first of every `keep_every` steps.

    What stays once by `keep_every` stays for ever, whatever is saved or forgotten later: nothing that comes
    later can be the first of the same stretch.
    """
    ordered = sorted(set(steps))
    stays = set(ordered[-keep:])
    if keep_every is not None:
        first: dict[int, int] = {}
        for step in ordered:
            first.setdefault(step // keep_every, step)
        stays |= set(first.values())
    return stays
