"""Spreads pure work over processes; the results come back in the order of the inputs.

Workers are spawned, not forked: a fork would copy the locks of running threads. They ignore Ctrl-C; the
parent handles it and ends them. When the parent is killed, the kernel ends them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from windlass.spec.errors import ProcessFailed
from windlass.spec.protocol.entrypoint import die_with_parent

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 3


def spread(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    processes: int,
    prepare: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[R]:
    """Yield work(item) for every item; `prepare(*arguments)` runs once in every process before.

    At most AHEAD items a process are in flight, so memory stays bounded however fast the items come.
    """
    if processes <= 1:
        if prepare is not None:
            prepare(*arguments)
        yield from map(work, items)
        return
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(prepare, arguments)
    )
    try:
        yield from _in_order(pool, work, items, AHEAD * processes)
    except BrokenProcessPool:
        raise ProcessFailed(
            "a worker process of the corpus build died",
            hint="the machine may be out of memory; run again with fewer processes",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def processes_for(total_bytes: int, requested: int | None) -> int:
    """Return the number of processes: starting one costs as much as about two megabytes of work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return requested if requested is not None else max(1, min(cores, total_bytes >> 21))


def _in_order(
    pool: ProcessPoolExecutor, work: Callable[[T], R], items: Iterable[T], max_running: int
) -> Iterator[R]:
    running: deque[Future[R]] = deque()
    for item in items:
        with _sigint_blocked():  # the first submission starts the processes
            running.append(pool.submit(work, item))
        if len(running) >= max_running:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT; processes started within inherit that and ignore Ctrl-C even while they import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(prepare: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    # Each worker is one of many: threads of its own would only fight over the same cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if prepare is not None:
        prepare(*arguments)
