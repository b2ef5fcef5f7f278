"""The loop of a worker: request a task, pull, compute, push, repeat.

A worker holds no state that matters. When a connection breaks it abandons its task and connects again; the
primary reassigns the task.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from windlass.spec.errors import ProcessFailed
from windlass.train.server.connections import Facts, ServerConnections
from windlass.train.server.peers import PATIENCE_S, RETRY_EVERY_S, WrongStage


class TaskRunner(Protocol):
    """Computes the tasks of one stage of a run."""

    stage: str

    def do(self, order: Facts, connections: ServerConnections) -> Facts:
        """Do a task; return its result, with the `version` of the values that it was computed from."""


def serve(
    folder: Path,
    servers: int,
    runner: TaskRunner,
    name: str,
    stopped: Callable[[], bool],
    stage: Callable[[], str],
) -> None:
    """Work at one stage of a run until it is over or `stopped` returns True.

    `stage` returns the current stage of the run, for a worker that finds the servers at another one.
    """
    until = math.inf  # the primary may take long before it accepts connections
    while not stopped():
        try:
            with contextlib.closing(ServerConnections(folder, runner.stage, servers, name)) as connections:
                until = time.monotonic() + PATIENCE_S
                if _serve(connections, runner, stopped):
                    return
        except (ConnectionError, OSError) as error:
            if isinstance(error, WrongStage) and stage() != runner.stage:
                return
            if time.monotonic() > until:
                raise ProcessFailed(
                    f"{name}: no server came back within {PATIENCE_S:.0f} s: {error}"
                ) from None
            time.sleep(RETRY_EVERY_S)


def _serve(connections: ServerConnections, runner: TaskRunner, stopped: Callable[[], bool]) -> bool:
    """Do tasks until the stage is over (return True) or the worker stops (return False)."""
    result: Facts | None = None
    while not stopped() or result is not None:
        order = connections.primary.call(result=result).head
        if order["kind"] == "end":
            return True
        begin = time.perf_counter()
        result = {"task": order["id"], **runner.do(order, connections), **connections.traffic()}
        result["took_s"] = time.perf_counter() - begin
    return False
