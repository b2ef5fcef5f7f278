"""What fails for one fails for all.

Processes that work together wait for each other at every exchange. One that leaves early, for a full disk
that only it has met, would leave the others waiting; so it stays until all know, and all leave alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import StoreFailed, WindlassError


@contextmanager
def raise_on_all_ranks(crew: ProcessGroup, trouble: str, hint: str | None = None) -> Iterator[None]:
    """Do a block on all ranks; when it fails on any, raise the same StoreFailed on all at its end.

    `trouble` is the sentence that the error begins with. Errors that are nobody's fault but our own are
    not waited for: they end the process, and so the exchange.
    """
    failure = None
    try:
        yield
    except WindlassError as error:
        failure = error.message
    except (OSError, MemoryError) as error:
        failure = str(error) or type(error).__name__
    for rank, reason in enumerate(crew.share(failure)):
        if reason is not None:
            who = f"rank {rank}: " if crew.world > 1 else ""
            raise StoreFailed(f"{trouble}: {who}{reason}", hint=hint)
