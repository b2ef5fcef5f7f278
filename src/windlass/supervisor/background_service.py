"""A service whose supervisor runs in a thread of this process, for benchmarks and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.spec.errors import WindlassError
from windlass.supervisor.supervisor import Supervisor


@contextmanager
def watched(service: Supervisor) -> Iterator[Supervisor]:
    """Start a service and step it in a thread while the block runs; afterwards raise its failure, if any."""
    stop = threading.Event()
    failures: list[WindlassError] = []

    def watch() -> None:
        try:
            while not stop.is_set():
                service.wait()
                service.step(time.monotonic())
        except WindlassError as error:
            failures.append(error)

    with service:
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join()
    if failures:
        raise failures[0]
