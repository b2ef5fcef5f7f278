"""Raises an error of one rank on all ranks.

Ranks wait for each other in every collective. A rank that failed alone, for example because its disk is full,
would leave the others waiting; so all ranks exchange their errors first and then raise together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import StoreFailed, WindlassError


@contextmanager
def raise_on_all_ranks(group: ProcessGroup, trouble: str, hint: str | None = None) -> Iterator[None]:
    """Run a block on all ranks; if it fails on any, raise the same StoreFailed on all at its end.

    `trouble` is the beginning of the error message. Other exceptions (bugs) are not collected: they end the
    process, and with it the collective.
    """
    failure = None
    try:
        yield
    except WindlassError as error:
        failure = error.message
    except (OSError, MemoryError) as error:
        failure = str(error) or type(error).__name__
    for rank, reason in enumerate(group.all_gather_json(failure)):
        if reason is not None:
            who = f"rank {rank}: " if group.world > 1 else ""
            raise StoreFailed(f"{trouble}: {who}{reason}", hint=hint)
